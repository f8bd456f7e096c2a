"""Metrics of text: hand-computed values, what is refused, intervals, the paired test (spec rows I1, I3, contract)."""

import importlib.util
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atento.base.errors import MissingPartError, ScoreWarning, UsageError
from atento.metrics import METRICS, bleu, chrf, exact_match, metric_named, paired_test, ter
from atento.metrics.rouge import f1_bleu_rouge, harmonic_mean, rouge, token_f1
from failing import fails

CAT = ["o gato está no tapete"], ["o gato está sentado no tapete"]
SCRIPTS = {  # two lines each, and the tokenizer of BLEU without packages for Japanese and Korean
    "Latin": ("13a", "Leio um livro novo todos os dias.", "O gato dorme perto da janela agora."),
    "Cyrillic": ("13a", "Я читаю новую книгу каждый день.", "Кошка сейчас спит возле окна."),
    "Greek": ("13a", "Διαβάζω ένα νέο βιβλίο κάθε μέρα.", "Η γάτα κοιμάται τώρα στο παράθυρο."),
    "Arabic": ("13a", "أقرأ كتابا جديدا كل يوم.", "القطة تنام الآن قرب النافذة."),
    "Hebrew": ("13a", "אני קורא ספר חדש כל יום.", "החתול ישן עכשיו ליד החלון."),
    "Devanagari": ("13a", "मैं हर दिन एक नई किताब पढ़ता हूँ।", "बिल्ली अभी खिड़की के पास सोती है।"),
    "Tamil": ("13a", "நான் தினமும் ஒரு புதிய புத்தகம் படிக்கிறேன்.", "பூனை இப்போது ஜன்னல் அருகே தூங்குகிறது."),
    "Georgian": ("13a", "მე ყოველდღე ვკითხულობ ახალ წიგნს.", "კატას ახლა ფანჯარასთან სძინავს ტკბილად."),
    "Han": ("zh", "我每天读一本新书。", "猫现在睡在窗户旁边。"),
    "Han and Latin": ("zh", "我用 LibreOffice 写一封新的信。", "猫在 Python 里睡觉。"),
    "Kana": ("char", "わたしは毎日あたらしい本を読みます。", "ねこは今、窓のそばで寝ています。"),
    "Hangul": ("char", "나는 매일 새 책을 읽는다.", "고양이가 지금 창가에서 잔다."),
    "Thai": ("char", "ฉันอ่านหนังสือใหม่ทุกวัน", "แมวกำลังนอนอยู่ข้างหน้าต่าง"),
    "Lao": ("char", "ຂ້ອຍອ່ານປຶ້ມໃໝ່ທຸກມື້", "ແມວກຳລັງນອນຢູ່ຂ້າງປ່ອງຢ້ຽມ"),
    "Khmer": ("char", "ខ្ញុំអានសៀវភៅថ្មីរាល់ថ្ងៃ", "ឆ្មាកំពុងដេកនៅក្បែរបង្អួច"),
    "Myanmar": ("char", "ကျွန်တော်နေ့တိုင်းစာအုပ်အသစ်ဖတ်သည်", "ကြောင်သည်ယခုပြတင်းပေါက်နားတွင်အိပ်နေသည်"),
    "Tibetan": ("char", "ང་ཉིན་ལྟར་དེབ་གསར་པ་ཀློག་གི་ཡོད།", "ཞི་མི་ད་ལྟ་སྒེའུ་ཁུང་འགྲམ་ལ་གཉིད་ཉལ།"),
}


def test_bleu_by_hand_clipped_and_perfect_where_text_is_identical() -> None:
    """Spec section 3: 40.94 with BP .819; 5, 3, 1 of the n-grams match, and no 4-gram, which counts as half of one."""
    score = bleu(*CAT)
    penalty = math.exp(1 - 6 / 5)
    assert score.value == pytest.approx(100 * penalty * (1 * 3 / 4 * 1 / 3 * (1 / 2) / 2) ** 0.25, abs=1e-9)
    assert round(score.value, 2) == 40.94 and round(score.parts["bp"], 3) == 0.819
    parts = {"p1": 100, "p2": 75, "p3": 100 / 3, "p4": 25, "bp": penalty, "length": 5, "reference_length": 6}
    assert score.parts == pytest.approx(parts)
    # spec section 3, Papineni's example: "the" seven times, at most two of them in one reference
    references = [["the cat is on the mat"], ["there is a cat on the mat"]]
    assert bleu(["the the the the the the the"], references).parts["p1"] == pytest.approx(200 / 7)
    assert bleu(["the the the the the the the"], [references[1]]).parts["p1"] == pytest.approx(100 / 7)
    # spec section 3, the notes' pair: three and four words, together one 4-gram; 7 of 7 words
    texts = ["eu amo PLN", "como vai você hoje"]
    score = bleu(texts, texts)
    assert score.value == pytest.approx(100) and score.parts["length"] == 7
    assert score.per_sentence() == pytest.approx([100, 100])  # the three words have no 4-gram to miss
    assert chrf(texts, texts).value == pytest.approx(100)
    assert ter(texts, texts).value == 0 and exact_match(texts, texts).value == 100


@pytest.mark.parametrize("name", [name for name, row in METRICS.items() if row.outputs in ("texts", "answers")])
@pytest.mark.parametrize("script", SCRIPTS)
def test_equal_lines_are_at_the_best_in_every_script(script: str, name: str) -> None:
    """And lines that lack a part of a sentence are neither at the best nor at nothing, but for exact matches."""
    tokenizer, *lines = SCRIPTS[script]
    best = 100 if METRICS[name].better == "higher" else 0
    score = metric_named(name)(lines, lines)
    assert score.value == pytest.approx(best), (script, score.settings)
    if name == "bleu" and not (script in ("Kana", "Hangul") and "mecab" in score.settings):
        assert f"tok:{tokenizer}|" in score.settings
    if name != "exact-match":
        assert 0 < metric_named(name)([line[: len(line) * 3 // 4] for line in lines], lines).value < 100


def test_the_tokenizer_is_sacrebleus_for_the_script_of_the_references() -> None:
    from sacrebleu.metrics.bleu import BLEU

    right, guess = list(SCRIPTS["Han"][1:]), ["我每天读一本旧书。", "猫现在睡在桌子旁边。"]
    assert bleu(guess, right).value == pytest.approx(BLEU(tokenize="zh").corpus_score(guess, [right]).score)
    assert bleu(right, right, tokenize="13a").value == 0
    pair = (["The ship Shinkai (しんかい 深海) dives deep."] * 2, ["The ship Shinkai (しんかい) dives."] * 2)
    assert "tok:13a" in bleu(*pair).settings
    assert "tok:tercom" in ter(["a 中 b c"], ["a 中 b d"]).settings and "tok:char" in ter(right, right).settings
    if importlib.util.find_spec("MeCab") is None:
        fails(MissingPartError, r"pip install 'sacrebleu\[ja\]'", bleu, right, right, tokenize="ja-mecab")


def test_references_that_leave_a_score_no_meaning_are_warned_of() -> None:
    for name, texts, said in (
        ("chrf", ["", " "], "every reference is empty"),
        ("exact-match", [""], "every reference is empty"),
        ("rouge", ["...", "!?"], "no reference has a word by the tokenizer unicode"),
        ("entity-f1", [["O", "O"], ["O"]], "no right tag is part of an entity"),
        ("multilabel-f1", [[], []], "no example has a right label"),
    ):
        with pytest.warns(ScoreWarning, match=said):
            metric_named(name)(texts, texts)


def test_one_item_has_no_interval_and_options_change_the_settings_line() -> None:
    with pytest.warns(ScoreWarning, match="no reference has more than 2 words by the tokenizer 13a"):
        assert bleu(["bom dia"], ["bom dia"]).value == 0
    with pytest.warns(ScoreWarning, match="one item alone does not vary"):
        assert chrf(["a"], ["a"]).interval() == (100, 100)
    assert bleu(["A b c d"], ["a b c d"]).value < 100
    score = bleu(["A b c d"], ["a b c d"], lowercase=True, tokenize="none", smooth="floor", max_order=2)
    assert score.value == pytest.approx(100) and "p3" not in score.parts
    assert "case:lc" in score.settings and "tok:none" in score.settings and "smooth:floor[0.10]" in score.settings
    assert bleu(*CAT, smooth="none").value == 0
    assert ter(["A"], ["a"]).value == 0 and ter(["A"], ["a"], case_sensitive=True).value == 100
    assert str(score).startswith("BLEU 100.00 nrefs:1|case:lc")


def test_ter_counts_edits_by_the_reference_word_and_chrf_and_exact_match_by_hand() -> None:
    score = ter(["o gato no tapete", "a b"], ["o gato está no tapete", "a c"])
    assert score.value == pytest.approx(100 * 2 / 7) and score.parts == {"edits": 2, "reference_length": 7}
    assert score.per_sentence() == pytest.approx([20, 50])
    """One order: "ab" against "abc" has precision 1 and recall 2/3, and recall counts four times (beta 2)."""
    score = chrf(["ab"], ["abc"], char_order=1)
    assert score.value == pytest.approx(100 * 5 * (2 / 3) / (4 + 2 / 3)) and score.name == "chrF2"
    assert score.parts == pytest.approx({"precision": 100, "recall": 200 / 3})
    assert chrf(["ab"], ["abc"], word_order=2).name == "chrF2++"
    score = exact_match(["avó", "sim", "não"], [["avô", "Sim", "não"], ["avó", "", "no"]])
    assert score.value == pytest.approx(200 / 3) and score.parts == {"matches": 2, "count": 3}
    assert exact_match(["avó"], ["avo"]).value == 0
    assert score.settings == "nrefs:2|case:mixed"


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if metric.outputs in ("texts", "classes")])
@pytest.mark.parametrize(
    ("predictions", "references", "said"),
    [
        (["a", "b"], ["a"], "got 2 predictions, and the references have 1; give lists of the same length"),
        (["a"], [["a"], ["a", "b"]], "got 1 predictions, and reference set 2 has 2"),
        ([], [], "there is nothing to score: got 0 predictions"),
        (["a"], [], "nothing to score against: got 0 references for 1 predictions"),
        ("ab", ["a", "b"], "must be lists of strings: got one string"),
        (["a"], "a", "must be lists of strings: got one string"),
        (["a"], [[None]], "must be strings(, whole numbers, or True and False)?: got None"),
    ],
)
def test_what_cannot_be_scored(name: str, predictions: list[str], references: list[str], said: str) -> None:
    fails(UsageError, said, METRICS[name].score, predictions, references)


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if metric.outputs == "texts"])
def test_texts_are_strings(name: str) -> None:
    for predictions, references, got in ((["a", 3], ["a", "b"], 3), ([1, 0], [1, 1], 1)):
        fails(UsageError, f"must be strings: got {got}", METRICS[name].score, predictions, references)


def test_unknown_names_and_options_list_the_known_and_ranges_are_said() -> None:
    known = "accuracy, bertscore, bleu, calibration-error, chrf"
    fails(UsageError, f"unknown metric 'blue'; did you mean 'bleu'.* Known: {known}", metric_named, "blue")
    fails(UsageError, r"smoothing 'x'.* Known: add-k, exp, floor, none", bleu, ["a"], ["a"], smooth="x")
    fails(UsageError, "tokenizer '13b'; did you mean '13a'", bleu, ["a"], ["a"], tokenize="13b")
    fails(UsageError, "`max_order` must be at least 1: got 0", bleu, ["a"], ["a"], max_order=0)
    fails(UsageError, r"`char_order` and `beta` .* got 0, 2 and 0", chrf, ["a"], ["a"], char_order=0)
    for level in (0, 1, -1, 95, float("nan")):
        fails(UsageError, "`level` must lie between 0 and 1: got", bleu(["a"], ["a"]).interval, level=level)
    fails(UsageError, "`samples` must be at least 1: got 0", bleu(["a"], ["a"]).interval, samples=0)


words = st.lists(st.sampled_from(["o", "gato", "não", "está", "aqui", "."]), max_size=9).map(" ".join)


@given(st.lists(st.tuples(words, words), min_size=1, max_size=12))
def test_scores_stay_in_range_and_sums_make_the_value(pairs: list[tuple[str, str]]) -> None:
    """The value is a function of the summed rows, whatever their order; the rows are what the bootstrap draws."""
    predictions, references = [one for one, _ in pairs], [other for _, other in pairs]
    for name, metric in METRICS.items():
        if metric.outputs != "texts":
            continue
        score = metric.score(predictions, references)
        assert score.value >= 0 and (score.value <= 100 + 1e-9 or name == "ter")
        assert len(score.segments) == len(pairs) == len(score.per_sentence())
        assert metric.score(predictions[::-1], references[::-1]).value == pytest.approx(score.value)
        low, high = score.interval(samples=20)
        assert 0 <= low <= high


def test_interval_is_that_of_a_plain_bootstrap_and_covers_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix product against the same draws summed one by one."""
    predictions = ["o gato", "o gato dorme aqui", "não", "o gato está aqui hoje", "x"] * 6
    references = ["o gato", "o gato dorme ali", "sim", "o gato esteve aqui hoje", "o"] * 6
    score = bleu(predictions, references, max_order=2)
    drawn = np.random.default_rng(5).choice(30, size=(200, 30), replace=True)
    values = [bleu([predictions[i] for i in row], [references[i] for i in row], max_order=2).value for row in drawn]
    assert score.interval(level=0.8, samples=200, seed=5) == pytest.approx(tuple(np.quantile(values, [0.1, 0.9])))
    score = chrf([f"palavra {number}" for number in range(10)], [f"palavras {number * 7}" for number in range(10)])
    whole = score.interval(samples=300)
    assert score.interval(samples=300) == whole and score.interval(samples=300, seed=2) != whole
    monkeypatch.setattr("atento.metrics.score._BLOCK", 70)
    assert score.interval(samples=300) == whole
    monkeypatch.undo()
    # 300 test sets of 80 sentences, 60 % of them right: a 90 % interval should hold 60 in about 90 % of them
    draw, held = random.Random(1), 0
    for trial in range(300):
        right = ["a" if draw.random() < 0.6 else "b" for _ in range(80)]
        low, high = exact_match(right, ["a"] * 80).interval(level=0.9, samples=300, seed=trial)
        held += low <= 60 <= high
    assert 0.84 <= held / 300 <= 0.96  # three and a half standard errors on either side


def test_paired_test_knows_a_real_difference_from_chance_and_from_none() -> None:
    truth = [f"frase {number}" for number in range(200)]
    good = [text if number % 10 else "x" for number, text in enumerate(truth)]  # 90 % right
    poor = [text if number % 2 else "x" for number, text in enumerate(truth)]  # 50 % right
    near = [text if number % 10 != 1 else "x" for number, text in enumerate(truth)]  # 90 % too, others wrong
    found = paired_test("exact-match", good, poor, truth, samples=500)
    assert found.difference == pytest.approx(40) and found.p_value == pytest.approx(1 / 501)
    assert str(found) == "difference +40.00, p = 0.0020 (paired bootstrap, 500 samples, seed 1)"
    assert paired_test(exact_match, good, near, truth, samples=500).p_value > 0.3
    same = paired_test("bleu", good, good, truth, samples=50)
    assert (same.difference, same.p_value) == (0.0, 1.0)  # sacrebleu says 1 / 51: no stray is above 0
    truth = ["o gato dorme", "a casa é azul", "ela canta"]
    for metric in ("bleu", "chrf", "exact-match", "rouge"):
        assert paired_test(metric, truth, list(truth), truth, samples=50).p_value == 1.0
    fails(UsageError, "one output a sentence .* got 2 and 1", paired_test, "bleu", ["a", "b"], ["a"], ["a", "b"])
    fails(UsageError, "unknown metric 'nist'", paired_test, "nist", ["a"], ["a"], ["a"])


def test_i3_token_f1_and_f1_of_bleu_and_rouge_by_hand() -> None:
    """Of "a b b c" and "b b b d e": two in common, no oftener than in either."""
    score = token_f1(["a b b c"], ["b b b d e"])
    assert score.parts == pytest.approx({"precision": 50, "recall": 40, "f1": 400 / 9})
    assert score.value == pytest.approx(400 / 9) and score.name == "token F1"
    assert score.settings == "nrefs:1|case:mixed|tok:space"
    assert token_f1(["Não é."], ["não é"]).value == 0
    assert token_f1(["Não é."], ["não é."], lowercase=True).value == 100
    assert token_f1(["Não é."], ["não é."], lowercase=True).settings == "nrefs:1|case:lc|tok:space"
    score = token_f1(["", " ", "a", "a b"], [["", "a", "", "b"], ["x", "x", "x", "b a c"]])
    assert score.per_sentence() == pytest.approx([100, 0, 0, 80]) and score.value == pytest.approx(45)
    low, high = score.interval(samples=100)
    assert low <= 45 <= high
    # spec section 3: BLEU of the pair is 40.94; five words of six are there, ROUGE-1 recall 83.33
    score = f1_bleu_rouge(["o gato está no tapete"], ["o gato está sentado no tapete"])
    b, r = 100 * math.exp(-0.2) * (1 * 3 / 4 * 1 / 3 * 1 / 4) ** 0.25, 100 * 5 / 6
    assert score.parts == pytest.approx({"bleu": b, "rouge1_recall": r})
    assert score.value == pytest.approx(2 * b * r / (b + r)) and score.name == "F1 (BLEU, ROUGE)"
    assert "smooth:exp" in score.settings and "stem:none" in score.settings
    score = f1_bleu_rouge(["a b"], ["c d"])
    assert score.value == 0 and score.parts == {"bleu": 0, "rouge1_recall": 0}
    assert harmonic_mean(0, 0) == 0 and harmonic_mean(0, 50) == 0 and harmonic_mean(50, 50) == 50


@given(st.lists(st.tuples(words, words, words), min_size=1, max_size=8))
def test_i3_joins_what_the_two_say(triples: list[tuple[str, str, str]]) -> None:
    """Of the whole, of two reference sets, and of each sentence, with sentence BLEU."""
    predictions, *references = ([one[side] for one in triples] for side in range(3))
    score = f1_bleu_rouge(predictions, references)
    first, second = bleu(predictions, references), rouge(predictions, references)
    assert score.value == pytest.approx(harmonic_mean(first.value, second.parts["rouge1_recall"]))
    for row, (prediction, *answers) in zip(score.per_sentence(), triples):
        recall = rouge([prediction], [[one] for one in answers]).parts["rouge1_recall"]
        alone = bleu([prediction], [[one] for one in answers]).per_sentence()[0]
        assert row == pytest.approx(harmonic_mean(alone, recall))


def test_interval_is_of_both_together_and_what_is_refused() -> None:
    """Two kinds of sentences, all right and all wrong: BLEU, recall and their F1 move as one."""
    score = f1_bleu_rouge(["um gato preto dorme"] * 10 + ["x y z w"] * 10, ["um gato preto dorme"] * 20)
    low, high = score.interval(samples=300)
    assert low < score.value < high
    assert score.value == pytest.approx(50)
    for metric in (token_f1, f1_bleu_rouge):
        fails(UsageError, "got 1 predictions, and reference set 2 has 2", metric, ["a"], [["a"], ["a", "b"]])
        fails(UsageError, "must be lists of strings: got one string", metric, "ab", ["a", "b"])
    fails(UsageError, "unknown stemmer", f1_bleu_rouge, ["a"], ["a"], stem="x")
