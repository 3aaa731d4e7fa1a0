//! OpenAI HTTP and gRPC front of a Mesh node.
