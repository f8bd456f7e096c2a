"""The data of the Portuguese models of entities, tags and stories: what is read, what is left out, what is held out."""

import gzip
from collections import Counter
from pathlib import Path

import pytest
from models import labels
from models.bits import bits, counts, model_bits
from models.held_out import text_hash
from models.stories import chapters, stories

from atento.config.reading.loading import load_recipe

RECIPES = Path(__file__).parents[2] / "models"


def test_the_committed_table_has_the_promised_parts_and_recipes_no_warning(tmp_path: Path) -> None:
    counts = Counter(labels.read_table().values())
    assert counts["test-wikiann"] == 2000 and counts["valid-lener"] == counts["valid-wikiann"] == 500
    assert counts["test-lener"] > 800 and counts["test-tags"] == 1167 and counts["valid-tags"] == 1172
    assert counts["test-stories"] > counts["valid-stories"] > 100
    for name in ("encoder", "entities", "tags", "lm"):
        assert load_recipe(RECIPES / f"atento-pt-{name}.yaml", environment={}).warnings == []
    table = {text_hash("b"): "test-tags", text_hash("a"): "valid-lener"}
    labels.write_table(table, tmp_path / "table.tsv")
    assert labels.read_table(tmp_path / "table.tsv") == table


def test_both_corpora_have_one_set_of_names_doubts_two_tags_of_a_contraction_and_marks() -> None:
    lener = "Ana B-PESSOA\nSilva I-PESSOA\n, O\n\nLei B-LEGISLACAO\n9.099 I-LEGISLACAO\n"
    assert list(labels.entities(lener.splitlines())) == [
        labels.Sentence(("Ana", "Silva", ","), ("B-PER", "I-PER", "O")),
        labels.Sentence(("Lei", "9.099"), ("B-LAW", "I-LAW")),
    ]
    assert list(labels.entities(["pt:Lisboa\tB-LOC\n", "\n"])) == [labels.Sentence(("Lisboa",), ("B-LOC",))]
    for line_words, line_tags, sure in (
        ("Ana nasceu em Lisboa", "B-PER O O B-LOC", True),
        ("Ana nasceu em 1990", "B-PER O O O", False),
        ("Em maio , Ana", "O O O B-PER", False),
        ("A Lei de Ana", "O O O B-PER", False),
        ("Rua 25 de Abril", "B-LOC I-LOC I-LOC I-LOC", True),
        ("o leitor Ana", "O O B-PER", True),
    ):
        assert labels.without_doubt(labels.Sentence(tuple(line_words.split()), tuple(line_tags.split()))) is sure
    words, tags = labels.as_read(
        labels.Sentence(("Em", "12/10/2018", "o", "Min.", "Melo"), ("O", "B-TIME", "O", "O", "B-PER"))
    )
    assert words == ("Em", "12", "/", "10", "/", "2018", "o", "Min", ".", "Melo")
    assert tags == ("O", "B-TIME", "I-TIME", "I-TIME", "I-TIME", "I-TIME", "O", "O", "O", "B-PER")
    (sentence,) = labels.parts_of_speech(TREE.splitlines())
    expected = "Disse/VERB -/PUNCT lhe/PRON do/ADP+DET livro/NOUN ,/PUNCT lho/PRON deu/VERB ./PUNCT ./PUNCT ./PUNCT"
    assert " ".join(f"{word}/{tag}" for word, tag in zip(*sentence)) == f"{expected} 2/NUM ,/PUNCT 5/NUM R/SYM $/SYM"


TREE = """# text = Disse-lhe do livro, lho deu.
1-2\tDisse-lhe\t_\t_\t_
1\tDisse\tdizer\tVERB\t_
2\tlhe\tele\tPRON\t_
3-4\tdo\t_\t_\t_
3\tde\tde\tADP\t_
4\to\to\tDET\t_
5\tlivro\tlivro\tNOUN\t_
5.1\tvazio\tvazio\tVERB\t_
6\t,\t,\tPUNCT\t_
7-8\tlho\t_\t_\t_
7\tlhe\tele\tPRON\t_
8\to\to\tPRON\t_
9\tdeu\tdar\tVERB\t_
10\t...\t...\tPUNCT\t_
11\t2,5\t2,5\tNUM\t_
12\tR$\tR$\tSYM\t_
"""


def line(word: str) -> str:
    return f"{word} andava pela rua do Ouvidor, e ninguém sabia dizer para onde ia"


BOOK = ["Contos", "", "ÍNDICE", "PREFÁCIO", "UM CONTO", "OUTRO", "PREFÁCIO", "Leitor, aqui estão."]
FIRST = ["UM CONTO", "ÍNDICE", "CAPÍTULO I", "CAPÍTULO II", "CAPÍTULO I"]
FIRST += [line(f"Ana{n}") + "." * (n % 3 == 2) for n in range(30)] + ["Fim."]
FIRST += ["CAPÍTULO II", *(line(f"Rui{n}") for n in range(30)), "foi."]
SECOND = ["OUTRO", *(line(f"Eva{n}") for n in range(40)), "foi."]


def test_a_book_falls_into_chapters_nothing_held_out_is_in_training_and_bits_are_those_of_the_models() -> None:
    found = stories([*BOOK, *FIRST, *SECOND])
    assert list(found) == ["UM CONTO", "OUTRO"]
    first, second = (list(chapters(found[title])) for title in found)
    assert [len(first), len(second)] == [2, 1]
    assert first[0][0].startswith("Ana0 andava pela rua do Ouvidor, e ninguém sabia dizer para onde ia Ana1 andava")
    assert first[0][-1].endswith("Fim.") and "ÍNDICE" not in " ".join(first[0])
    table = labels.draw(sources())
    files = labels.labelled_files(sources(), table)
    for name, sentences in files.items():
        assert sentences, name
        if "-train" in name:
            assert not table.keys() & {sentence.hash for sentence in sentences}
    assert len(files["entities-test-lener"]) == 10 and len(files["entities-valid"]) == 1000
    assert files["tags-train-gsd"] == [words(2003)]
    texts = labels.story_files(sources(), table)
    assert [len(texts[f"stories-{part}"]) for part in ("train", "valid", "test")] == [4, 3, 6]
    held = {text for part in ("valid", "test") for chapter in texts[f"stories-{part}"] for text in chapter}
    assert not held & {text for chapter in texts["stories-train"] for text in chapter}
    seen, other = b"o gato dorme " * 50, b"xyzxyzxyzxyz"
    assert bits(seen[:40], counts(seen, seen[:40]))[4] < 0.3
    orders = bits(other, counts(seen, other))
    assert orders[0] > 8 and orders[7] >= orders[0] - 1e-9
    assert 0.3 < model_bits("micro-world-lm", "a menina abriu a porta.\n\no gato vê a casa.\n".encode()) < 3


def words(number: int, first: str = "frase") -> labels.Sentence:
    return labels.Sentence((first, "número", "x" * number), ("O", "O", "O"))


def sources() -> labels.Sources:
    lener, wikiann = (
        {"train": [words(n, first) for n in range(1, 900)], "dev": [words(n, first) for n in range(890, 900)]}
        for first in ("lei", "título")
    )
    tree = {"train": [words(2000)], "dev": [words(2001)], "test": [words(2002)]}
    texts = {f"CONTO {n}": [line(f"{chr(65 + n)}{m}") for m in range(20)] for n in range(12)}
    return labels.Sources(lener, wikiann, tree, [words(2002), words(2003)], texts, [[line("A0"), "novo"]])


def test_files_of_anyone_are_checked_and_portuguese_of_pairs_comes_once_without_what_is_held_out(tmp_path) -> None:
    table = {text_hash("Ana lê o livro."): "test-tags"}
    texts = {
        "a.conll": "ana\tO\nlê\tO\no\tO\nlivro\tO\n\nRui\tO\n",
        "a.tsv": "Ana lê.\tAna lê o livro!\nx\ty\n",
        "a.conllu": "1\tAna\t_\tPROPN\n2\tlê\t_\tVERB\n3\to\t_\tDET\n4\tlivro\t_\tNOUN\n",
        "a.txt": "Ana lê o livro velho.\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert [labels.held_out_in(tmp_path / name, table) for name in texts] == [1, 1, 1, 0]
    held, free = "Esta frase é da prova.", "Esta frase pode ser lida."
    rows = f"a\t{held}\tx\nb\t{free}\tx\nc\t{free.upper()}\tx\nd\tCurta demais.\tx\n"
    (tmp_path / "train.tsv").write_text(rows, encoding="utf-8")
    (tmp_path / "european.tsv").write_text("", encoding="utf-8")
    assert list(labels.pair_texts(tmp_path, {text_hash(held): "test-tags"})) == [free]


def test_the_command_writes_every_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {
        "lener_br/train.conll": "".join(f"Ana B-PESSOA\nlê O\nlivro{n} O\n\n" for n in range(5)),
        "lener_br/dev.conll": "Rui B-PESSOA\nlê O\n",
        "wikiann_pt/train.tsv": "pt:Évora\tB-LOC\n",
        "wikiann_pt/dev.tsv": "pt:Faro\tB-LOC\n",
        "machado_de_assis/stories.txt": "\n".join([*BOOK, *FIRST, *SECOND]),
        "machado_de_assis/novels.txt": line("Bento"),
        "machado_de_assis/plays.txt": "CENA I\nOlá.",
    }
    texts |= {f"ud_bosque/pt_bosque-ud-{part}.conllu": TREE for part in ("train", "dev", "test")}
    texts["ud_gsd/train.conllu"] = TREE.replace("livro", "caderno")
    for name, text in texts.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("train.tsv"):
            path.with_name("train.tsv.gz").write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text, encoding="utf-8")
    labels.gather(tmp_path / "out", tmp_path / "data", None, redraw=False)
    written = {path.name: path.read_text("utf-8") for path in (tmp_path / "out").iterdir()}
    assert len(written) == 13 and capsys.readouterr().out.count("\n") == 13
    assert "Ana\tB-PER\nlê\tO\nlivro0\tO\n\nAna\tB-PER\n" in written["entities-train.conll"]
    assert "do\tADP+DET\ncaderno\tNOUN\n" in written["tags-train-gsd.conll"]
    assert "Olá.\n" in written["stories-train.txt"]
