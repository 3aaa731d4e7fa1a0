//! A stage on llama.cpp: engine, sampling, vocabulary, chat templates.
