"""The pairs that the shipped translators learn from: what is read, what is cleaned away, what is held out."""

import struct
from pathlib import Path

import pytest
from models.held_out import QUOTAS, Pair, draw, everyday_pairs, normalized, overlapping, read_table, text_hash
from models.make import MADE, commands, main
from models.pairs import cleaned, packages
from models.prepare import MARK, prepare
from models.readers import package_pairs, po_texts, qm_texts, sentences
from models.release import release

import atento
from atento.config.reading.loading import load_recipe


def test_the_held_out_table_has_the_promised_counts_and_a_draw_changes_little_with_the_data() -> None:
    splits = list(read_table().values())
    for split in {quota.split for quota in QUOTAS}:
        parts = [quota for quota in QUOTAS if quota.split == split]
        assert splits.count(f"test-{split}") == sum(quota.test for quota in parts)
        assert splits.count(f"valid-{split}") == sum(quota.valid for quota in parts)
    own = everyday_pairs()
    assert len(own) == 200 == len({pair.source for pair in own})
    assert all(read_table()[pair.hashes] == "test-everyday" for pair in own)
    split_of: dict[str, str] = {}
    for sides, split in read_table().items():
        for side in sides:
            assert split_of.setdefault(side, split) == split
    assert normalized("  “Olá,  MUNDO”! ") == "olá mundo"
    table = {(text_hash("How are you?"), text_hash("Como vai você?")): "test-tatoeba"}
    lines = ["Fine.\tBem.\tx\n", "how are you\tTudo bem?\tx\n", "Hi!\tComo vai, você\tx\n"]
    assert list(overlapping(lines, table)) == [(2, "test-tatoeba"), (3, "test-tatoeba")]
    listed = packages()
    assert {package.registry for package in listed} == {"debian", "pypi", "npm"}
    assert all(package.names and package.section and package.licence for package in listed)
    assert len({package.names[0] for package in listed}) == len(listed)
    pairs = [Pair(f"This is sentence {word}a.", f"Esta é a frase {word}a.", "tatoeba") for word in range(3000)]
    pairs = [Pair(p.source.translate(_WORDS), p.target.translate(_WORDS), p.origin) for p in pairs]
    all_drawn, most_drawn = draw(pairs, []), draw(pairs[30:], [])
    assert len(all_drawn) == 1500 and len(all_drawn.keys() & most_drawn.keys()) > 1450
    assert pairs[0].hashes not in draw(pairs, [pairs[0]])


_WORDS = str.maketrans("0123456789", "abcdefghij")


def test_cleaned() -> None:
    for source, target, wanted in (
        ("<b>O</b>pen the file", "<b>A</b>brir o arquivo", ("Open the file", "Abrir o arquivo")),
        ("<p>One</p><p>Two</p>", "<p>Um</p><p>Dois</p>", ("One Two", "Um Dois")),
        ("&Open", "Abrir", ("Open", "Abrir")),
        ("_Open", "_Abrir", ("Open", "Abrir")),
        ("~File", "~Arquivo", ("File", "Arquivo")),
        ("menu|Open", "Abrir", ("Open", "Abrir")),
        ("1.2. Undo", "1.2. Desfazer", ("Undo", "Desfazer")),
        ("Failed: %s (%d)", "Falhou: %s (%d)", ("Failed: %s (%d)", "Falhou: %s (%d)")),
        ("Save &amp; quit", "Salvar &amp; sair", ("Save & quit", "Salvar & sair")),
        ("Read <file>", "Ler <arquivo>", ("Read <file>", "Ler <arquivo>")),
        ("<b>Bold</b>", "Negrito", None),
        ("org.gnome.Thing", "Coisa", None),
        ("https://example.org", "https://example.org/pt", None),
        ("OK", "ok", None),
        ("Hello", "OlÃ¡", None),
        ("EMAIL OF TRANSLATORS", "ana@example.org", None),
        ("Written by many", "Escrito por ana@example.org", None),
        ("word " * 251, "palavra " * 251, None),
    ):
        assert cleaned(source, target) == wanted


def test_po_and_qm_messages_and_paragraphs() -> None:
    text = (
        'msgid ""\nmsgstr "Language: pt_BR"\n\nmsgctxt "x"\nmsgid "_Open"\nmsgstr "_Abrir"\n\n'
        '#, fuzzy\nmsgid "Close"\nmsgstr "Abrir"\n\nmsgid "one\\n"\n"two"\nmsgstr "um "\n"dois"\n\n'
        'msgid "%d day"\nmsgid_plural "%d days"\nmsgstr[0] "%d dia"\nmsgstr[1] "%d dias"\n'
    )
    assert list(po_texts(text)) == [("Open", "Abrir"), ("one two", "um dois")]

    def field(tag: int, data: bytes) -> bytes:
        return struct.pack(">BI", tag, len(data)) + data

    message = field(3, "Olá".encode("utf-16-be")) + field(6, b"Hello") + field(7, b"Window") + b"\x01"
    data = bytes.fromhex("3cb86418caef9c95cd211cbf60a1bddd") + field(0x42, b"hash") + field(0x69, message)
    assert list(qm_texts(data)) == [("Hello", "Olá")] and list(qm_texts(b"no catalogue")) == []
    parts = (
        ("It rained all day long.", "We stayed at home and played."),
        ("Choveu o dia todo.", "Ficamos em casa jogando."),
    )
    source, target = map(" ".join, parts)
    assert list(sentences(source, target, longer_than=5)) == list(zip(*parts))
    joined = target.replace(". F", ", f")
    assert list(sentences(source, joined, longer_than=5)) == [(source, joined)]


def test_a_package_is_read_by_what_its_files_are(tmp_path: Path) -> None:
    files = {
        "DEBIAN/templates": "Template: a/b\nType: note\nDescription: Go on?\n One.\n .\n Two.\n"
        "Description-pt_BR.UTF-8: Continuar?\n Um.\n .\n Dois.\n",
        "usr/a.desktop": "[Desktop Entry]\nName=Files\nName[pt_BR]=Arquivos\nName[pt]=Ficheiros\nExec=a\n",
        "usr/a.metainfo.xml": '<c><summary>Play</summary><summary xml:lang="pt-BR">Jogue</summary></c>',
        "usr/help/C/a/x.page": "<page><title>Help</title><p>See <em>this</em>.</p><p>See <xref/></p></page>",
        "usr/help/pt_BR/a/x.page": "<page><title>Ajuda</title><p>Veja <em>isto</em>.</p><p>Ver <xref/></p></page>",
        "usr/HTML/en/k/a.docbook": '<!DOCTYPE b [<!ENTITY i "&k;">]><b><para>Use &i; &now;.</para><para>Go</para></b>',
        "usr/HTML/pt_BR/k/a.docbook": "<!DOCTYPE b [<!ENTITY i '&k;'>]><b><para>Use &i;</para><para>Vá</para></b>",
        "usr/i18n/en.json": '{"a": "Yes", "b": {"c": "No"}, "@metadata": {"x": "y"}}',
        "usr/i18n/pt-br.json": '{"a": "Sim", "b": {"c": "Não"}}',
        "usr/M.properties": "# c\nk = Ship\n",
        "usr/M_pt_BR.properties": "k=Na\\u0076io\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    brazilian = {
        "question": {"Go on?": "Continuar?", "One.": "Um.", "Two.": "Dois."},
        "menu": {"Files": "Arquivos", "Play": "Jogue"},
        "manual": {"Help": "Ajuda", "See this.": "Veja isto.", "Go": "Vá"},  # the first names what is not known
        "catalogue": {"Yes": "Sim", "No": "Não", "Ship": "Navio"},
    }
    right = {(kind, "pt-BR", source, target) for kind, texts in brazilian.items() for source, target in texts.items()}
    assert set(package_pairs(tmp_path, {"k": "Kate"})) == right | {("menu", "pt", "Files", "Ficheiros")}


def test_training_files_are_cleaned_by_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.prepare.WORLD", 20)
    rows = [
        ("Who reads the old book?", "Quem lê o livro velho?", "tatoeba"),
        ("Open the file first.", "Primeiro abra o arquivo.", "catalogue:a"),
        ("Open", "Abrir", "catalogue:a"),
        ("Read the %s page.", "Leia a página.", "manual:b"),
        ("Read this page.", "Leia esta página.", "manual:b"),
        ("house", "casa", "words:c"),
    ]
    (tmp_path / "train.tsv").write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")
    (tmp_path / "spanish.tsv").write_text("We know it all.\tSabemos tudo isso.\tapertium:tatoeba-es\n", "utf-8")
    prepare(tmp_path)
    found = {name: (tmp_path / f"{name}.tsv").read_text("utf-8").splitlines()[1:] for name in ("tatoeba", "texts")}
    assert found["tatoeba"] == ["Who reads the old book?\tQuem lê o livro velho?"]
    assert found["texts"] == ["Open the file first.\tPrimeiro abra o arquivo.", "Read this page.\tLeia esta página."]
    assert "placeholders" in (tmp_path / "texts.dropped.tsv").read_text("utf-8")
    assert (tmp_path / "rules.tsv").read_text("utf-8").splitlines()[1] == f"{MARK} We know it all.\tSabemos tudo isso."
    assert 19 <= len((tmp_path / "world.tsv").read_text("utf-8").splitlines()) <= 21
    both, *directions = (
        load_recipe(Path(__file__).parents[2] / "models" / f"{name}.yaml", [f"data.folder={tmp_path}"]).recipe
        for name in ("both-directions", "atento-en-pt", "atento-pt-en")
    )
    assert list(both.tokenizer.markers) == [MARK]
    assert all(str(recipe.init.model).endswith("both-directions") for recipe in directions if recipe.init)


def test_a_translator_is_released_in_8_bits_with_its_scores_and_both_directions_translate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = ["The cat sleeps.\tO gato dorme.", "The white dog runs.\tO cachorro branco corre."] * 2
    for split in ("test-tatoeba", "test-documentation", "test-interface"):
        (tmp_path / f"{split}.tsv").write_text("".join(f"{pair}\tx\n" for pair in pairs), "utf-8")
    (tmp_path / "everyday.tsv").write_text(pairs[0] + "\n", "utf-8")
    monkeypatch.setattr("models.release.EVERYDAY", tmp_path / "everyday.tsv")
    release("micro-world-en-pt", tmp_path, tmp_path / "atento-en-pt", "a minute")
    card = (tmp_path / "atento-en-pt" / "README.md").read_text("utf-8")
    assert "# atento-en-pt" in card and "made with a minute" in card
    assert "| tatoeba | English to Portuguese | 4 | " in card and "Portuguese to English" not in card
    assert atento.load(tmp_path / "atento-en-pt").translate("The white cat sleeps.") == "O gato branco dorme."
    model = atento.load(Path(__file__).parents[2] / "models" / "both-directions")
    texts = ["My sister does not read the book.", "Minha irmã não lê o livro.", "", "😀😀😀"]
    assert model.translate(texts) == ["Minha irmã não lê o livro.", "My sister doesn't read the book.", "", "😀😀😀"]


def test_what_is_asked_for_is_gathered_trained_and_released_in_order(tmp_path, monkeypatch) -> None:
    paths = [path for path, _ in commands(["atento-pt-tags"], tmp_path, tmp_path)]
    made = [path.relative_to(tmp_path) for path in paths if path.is_relative_to(tmp_path)]
    names = ["pairs/train.tsv", "labels/stories-train.txt", "runs/atento-pt-encoder", "runs/atento-pt-tags"]
    assert [str(path) for path in made] == names
    for name in (*MADE, "atento-pt-encoder"):
        assert load_recipe(Path(__file__).parents[2] / "models" / f"{name}.yaml").recipe
    steps = [command[2] for _, command in commands(MADE, tmp_path, tmp_path)]
    assert steps.count("models.release") == len(MADE) and steps.index("models.prepare") < steps.index("atento")
    run: list[str] = []
    monkeypatch.setattr("models.make.subprocess.run", lambda command, **_: run.append(command[2]))
    for name in ("pairs/train.tsv", "pairs/spanish.tsv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a\tb\tc\n", "utf-8")
    main(["atento-en-pt", "--data", str(tmp_path), "--work", str(tmp_path)])
    assert run == ["models.prepare", "atento", "models.release"]
