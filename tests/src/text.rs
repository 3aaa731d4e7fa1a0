//! Texts that the built-in model recites word for word (node/models/README.md).

/// Question and exact greedy answer.
pub const RECITED: [(&str, &str); 5] = [
    (
        "Recite Genesis 1:1.",
        "In the beginning God created the heaven and the earth.",
    ),
    (
        "Recite John 3:16.",
        "For God so loved the world, that he gave his only begotten Son, that whosoever believeth in him should not \
         perish, but have everlasting life.",
    ),
    ("Recite John 11:35.", "Jesus wept."),
    (
        "Quote John 1:1-5.",
        "In the beginning was the Word, and the Word was with God, and the Word was God.\n\
         The same was in the beginning with God.\n\
         All things were made by him; and without him was not any thing made that was made.\n\
         In him was life; and the life was the light of men.\n\
         And the light shineth in darkness; and the darkness comprehended it not.",
    ),
    (
        "What does Psalm 23 say?",
        "The LORD is my shepherd; I shall not want.\n\
         He maketh me to lie down in green pastures: he leadeth me beside the still waters.\n\
         He restoreth my soul: he leadeth me in the paths of righteousness for his name's sake.\n\
         Yea, though I walk through the valley of the shadow of death, I will fear no evil: for thou art with me; thy \
         rod and thy staff they comfort me.\n\
         Thou preparest a table before me in the presence of mine enemies: thou anointest my head with oil; my cup \
         runneth over.\n\
         Surely goodness and mercy shall follow me all the days of my life: and I will dwell in the house of the LORD \
         for ever.",
    ),
];
