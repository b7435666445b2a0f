"""Short texts on many subjects: `convert` measures the inputs of layers on them, zero-shot classification its labels.

They are also a part of the texts on which a server's vectors are checked. They are not the texts on which models are
compared (see `mlxbert.export.compare.fixed_texts`).
"""

from collections.abc import Iterator

_PEOPLE = (
    "a nurse", "two children", "the old carpenter", "a young woman", "my brother", "some tourists", "the minister",
    "an engineer", "a man in a red coat", "the goalkeeper", "several students", "a street musician", "her grandmother",
    "the police officer", "a farmer", "the court", "a small dog", "our neighbours", "the company", "a pilot",
    "the chef", "a teenager on a bike", "the research team", "a bank clerk", "the mayor of the city", "a poet",
    "the audience", "a fisherman", "the union", "a tired runner", "the customer", "a white horse", "the editor",
)  # fmt: skip
_ACTS = (
    "is playing the guitar", "bought a used car", "has signed the contract", "waited for the last train",
    "is slicing an onion", "asked for a refund", "refused to answer questions", "climbed over the fence",
    "reported higher profits", "was taken to hospital", "is riding a wave", "wrote a letter to the editor",
    "repaired the broken window", "lost the election by a few votes", "is reading a newspaper", "fell asleep",
    "announced new rules on trade", "sold the house", "is feeding the ducks", "missed the deadline",
    "opened a bakery", "solved the equation", "is jumping into the pool", "cancelled the meeting",
    "found a wallet", "blamed the weather", "is painting a wall", "won the second match", "tested the vaccine",
)  # fmt: skip
_ENDS = (
    "in the park", "on Monday morning", "after the storm", "near the border", "for the first time", "without a ticket",
    "at the airport", "because of the heat", "in front of the museum", "last year", "with a sharp knife",
    "during the war", "on the kitchen table", "despite the protests", "before sunrise", "in a small village",
    "for 250 dollars", "under the bridge", "with great care", "in northern Italy", "", "at school", "over the weekend",
)  # fmt: skip
_SENTENCES = (
    "How do I change the password of my account?",
    "The file could not be opened: permission denied.",
    "Water boils at 100 degrees Celsius at sea level.",
    "Shares fell by 3.4% on Wednesday, the largest drop since 2009.",
    "She can't remember where she left her keys.",
    "What is the best way to learn a foreign language?",
    "The planet Jupiter has at least 79 moons.",
    "I loved this film; the ending made me cry.",
    "Terrible service, cold food and a rude waiter.",
    "The treaty was signed in Vienna in 1815.",
    "Add two eggs, a cup of flour and a pinch of salt.",
    "import numpy as np; x = np.zeros((3, 4))",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "He is taller than his sister, but she runs faster.",
    "Please find attached the invoice for March.",
    "No one was hurt when the roof collapsed.",
    "The second movement of the symphony is slow and sad.",
    "Is it safe to take aspirin with antibiotics?",
    "Flights from London to New York take about eight hours.",
    "The bill passed the Senate by 52 votes to 48.",
    "Cells divide, grow and die.",
    "Who wrote the novel about the white whale?",
    "It has been raining for three days.",
    "Turn left at the church and follow the river.",
    "A right triangle has one angle of 90 degrees.",
    "The battery of this phone lasts two days, which is great.",
    "Nobody believed the story at first.",
    "Three members of the band left in the spring.",
    "In 1969, people walked on the Moon.",
    "The cheapest room costs €45 a night, breakfast included.",
    "Why does my computer restart by itself?",
    "Prices of oil rose again, and so did those of gas.",
    "The patient complained of fever and a dry cough.",
    "Good morning!",
    "Thanks, that solved my problem.",
    "The defendant pleaded not guilty.",
    "Elephants are the largest land animals.",
    "You should back up your data every week.",
    "The bridge was built between 1883 and 1890.",
    "We are looking for a software developer in Berlin.",
    "Rome is the capital of Italy.",
    "The committee will vote on the proposal next Thursday.",
    "Two women in summer dresses are dancing on the beach.",
    "A cat looks out of the window at the birds.",
    "The central bank left interest rates unchanged.",
    "My order arrived late and the box was damaged.",
    "How many calories are in a banana?",
    "Which country has won the most World Cups?",
    "An earthquake of magnitude 6.1 shook the coast of Chile.",
    "He scored twice in the first half and was named player of the match.",
    "The software update fixes several security problems.",
    "Iron rusts when it is exposed to water and air.",
    "Where can I watch the new season of the series?",
    "The museum shows paintings from the sixteenth century.",
    "She plays the violin beautifully, doesn't she?",
    "Investors worry about inflation and higher wages.",
    "Ten people were killed when a bus fell into a ravine.",
    "A brown horse stands in a green field behind a fence.",
    "Cut the potatoes into thin slices and fry them in oil.",
    "Our flight was delayed because of fog.",
    "The suspect was arrested at his home on Friday night.",
    "Bees make honey from the nectar of flowers.",
    "I would not recommend this hotel to anyone.",
    "What happens if I miss a payment on my credit card?",
    "The king died without an heir, and a civil war began.",
    "Plants need light, water and minerals to grow.",
    "Children under five travel free of charge.",
    "The second law of thermodynamics concerns entropy.",
    "His new book is about the history of mathematics.",
    "The lawyer said that her client would appeal.",
    "A man is cutting wood with an axe.",
    "There is nothing wrong with the engine.",
    "The train to Oxford leaves from platform nine.",
    "Doctors advise against smoking during pregnancy.",
    "Could you send me the report by tomorrow evening?",
    "Apple, Google and Microsoft all released earnings this week.",
    "The army took control of the radio station.",
    "A girl in a yellow hat is blowing soap bubbles.",
    "You can pay by card, in cash or by bank transfer.",
    "The moon was full and the sea was calm.",
    "Vaccines train the immune system to recognize a virus.",
    "He fixed the bicycle and rode it to work.",
    "The price of gold reached a record high.",
    "Is there a pharmacy near the hotel?",
    "My son is afraid of spiders.",
    "The river Danube flows through ten countries.",
    "This recipe serves four people.",
    "The judge ordered the newspaper to print a correction.",
    "Sales of electric cars doubled in China.",
    "The lake is frozen from December to March.",
    "A function that calls itself is called recursive.",
    "The actor thanked his parents in a short speech.",
    "I forgot to lock the door.",
    "Talks between the two governments ended without an agreement.",
    "Sharks have been around longer than trees.",
    "The shop sells shoes, bags and belts made of leather.",
    "The team lost 3-0 at home against Liverpool.",
    "What does this word mean in English?",
    "A boy is throwing a stick for his dog.",
    "She studied law at the University of Edinburgh.",
    "The tax on tobacco will rise by five percent.",
    "The old factory has been turned into flats.",
    "The heart pumps blood through the body.",
    "The password must have at least eight characters.",
    "A storm destroyed the roofs of many houses.",
    "He speaks Arabic, Turkish and a little French.",
    "This is the worst coffee I have ever had.",
    "The number of unemployed people fell slightly in May.",
    "The wolf is a relative of the dog.",
    "Mix the red paint with white to get pink.",
    "Protesters threw stones at the embassy.",
    "Can I return a gift without the receipt?",
    "The temple was built on a hill above the town.",
    "The new phone has a better camera but less memory.",
    "Four men are sitting around a table, playing cards.",
    "The oxygen in the air comes from plants and algae.",
    "The director of the festival resigned in August.",
    "It was the coldest winter in fifty years.",
    "Press the green button to start the machine.",
    "Germany and France signed an agreement on defence.",
    "A plane is taking off from the runway.",
    "Her first album sold two million copies.",
    "The square root of 81 is nine.",
    "The thief escaped through the back door.",
    "Many birds fly south in autumn.",
    "The bank refused to give them a loan.",
    "Nobody knows who built the stone circle.",
    "A kitten is drinking milk from a bowl.",
    "How long does it take to boil an egg?",
    "The road to the village was closed by snow.",
    "The study followed 12,000 adults for ten years.",
    "The ship sank in deep water off the coast of Spain.",
)
_LANGUAGES = (
    "Der Zug nach Hamburg fährt heute leider nicht.",
    "Wie kann ich meine Bestellung stornieren?",
    "Die Regierung hat neue Maßnahmen angekündigt.",
    "Le chat dort sur le canapé.",
    "Combien coûte un billet pour Lyon ?",
    "Le président a prononcé un discours devant le parlement.",
    "El equipo ganó el partido en el último minuto.",
    "¿Dónde está la estación de autobuses?",
    "Los científicos descubrieron una nueva especie.",
    "O restaurante fica perto da praia.",
    "Il libro è sul tavolo della cucina.",
    "Pociąg odjeżdża o ósmej rano.",
    "De winkel is op zondag gesloten.",
    "Я купил хлеб и молоко в магазине.",
    "Сегодня вечером будет дождь.",
    "Bugün hava çok güzel.",
    "الطقس جميل اليوم في المدينة.",
    "मुझे चाय और रोटी पसंद है।",
    "今天下午三点我们在图书馆见面。",
    "这家餐厅的菜很好吃。",
    "昨日、友達と映画を見ました。",
    "駅までどうやって行きますか?",
    "오늘은 날씨가 아주 좋아요.",
    "Tôi muốn đặt một phòng cho hai người.",
)
_COUNT = 150  # combined sentences


def sample() -> list[str]:
    """Returns about 300 texts of about 12 tokens each."""
    return [*_SENTENCES, *_LANGUAGES, *_combined()]


def english() -> tuple[str, ...]:
    """Returns about 100 English sentences on as many subjects."""
    return _SENTENCES


def languages() -> tuple[str, ...]:
    """Returns about 20 sentences in other languages."""
    return _LANGUAGES


def _combined() -> Iterator[str]:
    """Yields sentences that are combined from a subject, an action and an ending.

    Each is taken from its own list. The lengths of the lists have no common divisor, so that the combinations vary.
    """
    for number in range(_COUNT):
        subject, act, end = _PEOPLE[number % 33], _ACTS[number % 29], _ENDS[number % 23]
        text = f"{subject} {act} {end}".strip()
        yield text[0].upper() + text[1:] + "."
