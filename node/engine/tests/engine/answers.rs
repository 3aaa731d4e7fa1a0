//! The built-in model's answers, as its README gives them.

use mesh_engine::LlamaVocabularyLoader;
use mesh_proto::{sampling::greedy_sampling, v1::ChatMessage};

use crate::{chain::Chain, models};

/// Questions and answers of the README: `N. \`question\`` and the fenced text after it.
fn from_readme() -> Vec<(String, String)> {
    let readme = std::fs::read_to_string(models::built_in().with_file_name("README.md")).unwrap();
    let (_, answers) = readme.split_once("## Exact greedy answers").unwrap();
    let mut cases = Vec::new();
    for part in answers.split("```text\n").collect::<Vec<_>>().windows(2) {
        let question = part[0].trim_end().rsplit_once(". `").unwrap().1.trim_end_matches('`');
        let answer = part[1].split_once("\n```").unwrap().0;
        cases.push((question.to_owned(), answer.to_owned()));
    }
    cases
}

#[test]
fn the_built_in_model_recites_what_its_readme_says() {
    let vocabulary = LlamaVocabularyLoader.load_vocabulary(&models::built_in()).unwrap();
    let mut chain = Chain::new(&models::built_in(), &[0, 3, 5, 8], 1, 511);
    let cases = from_readme();
    assert_eq!(cases.len(), 11);
    for (session, (question, answer)) in (1..).zip(cases) {
        let message = ChatMessage {
            role: "user".into(),
            content: question.clone(),
            name: None,
        };
        let prompt = vocabulary.tokenize_chat(&[message], 511).unwrap();
        chain.open(0, session, &greedy_sampling());
        let mut token = chain.step(0, session, 0, &prompt);
        let mut bytes = Vec::new();
        for position in u32::try_from(prompt.len()).unwrap()..500 {
            if vocabulary.is_end_of_generation(token) {
                break;
            }
            vocabulary.piece(token, &mut bytes);
            token = chain.step(0, session, position, &[token]);
        }
        assert_eq!(String::from_utf8(bytes).unwrap(), answer, "{question}");
        assert!(vocabulary.is_end_of_generation(token), "{question}");
        chain.free(0);
    }
}
