"""The adjectives of the micro-world, one per line: English, Portuguese, copula, group, kinds of noun, comparative.

Copula: `ser`, `estar`, or `either` (estar with people and animals, ser with things). Group: its rank orders two
adjectives (table in `lexicon`). Comparative: the -er form, `more`, or nothing; `=` gives the Portuguese comparative if
it is one word. Flags: `<` precedes the noun, `!` only after *the* or a possessive, `^` only in the predicate.
"""

ADJECTIVES = """
first primeiro ser limit OIBVC <!
second segundo ser limit OIBVC <!
best melhor ser limit OIBVPUC <!
worst pior ser limit OIBVPUC <!
good bom/boa/bons/boas ser opinion PAFDCOUBRVIM better=melhor <
bad ruim ser opinion PFDCOUBVIM worse=pior
beautiful bonito ser opinion PACOUBRVNIM more
ugly feio ser opinion PACOUBRVN uglier
interesting interessante ser opinion PBRNOI more
important importante ser opinion PBIR more
famous famoso ser opinion PBRNI more
strange estranho ser opinion PACOBRNI stranger
funny engraçado ser opinion PAI funnier
perfect perfeito ser opinion FCOBRIMN
terrible terrível ser opinion PFCRIBD
simple simples ser opinion COUIBF simpler
elegant elegante ser opinion PCBUV more
useful útil ser opinion OUVICM more
dangerous perigoso ser opinion AVRNI more
comfortable confortável either opinion CUBRV more
delicious delicioso ser opinion FD more
sweet doce ser opinion FD sweeter
fresh fresco ser opinion FD
expensive caro ser opinion FDCOUBVMQ more
cheap barato ser opinion FDCOUVM cheaper
rare raro ser opinion AONMF rarer
popular popular ser opinion PBRIFMN more
easy fácil ser opinion I easier
difficult difícil ser opinion I more
long longo ser size CIxQ longer
big grande ser size ACOUBRVNFMQ bigger=maior
small pequeno ser size ACOUBRVNFMQ smaller=menor
tall alto ser size PBc taller
heavy pesado ser size OUVMQ heavier
fat gordo ser size PA fatter
thin magro ser size PA thinner
new novo ser age COUBRVIMQ newer
old velho ser age PACOUBRVMQ older
young jovem ser age PA younger
modern moderno ser age BUVRIOMQ more
ancient antigo ser age BRONIQ
tired cansado estar state PA more
happy feliz estar state PA happier
sad triste estar state PA sadder
sick doente estar state PA
hungry faminto estar state PA
nervous nervoso estar state PA
calm calmo estar state PA calmer
worried preocupado estar state P more
busy ocupado estar state P busier
ready pronto estar state P ^
alone sozinho estar state PA ^
awake acordado estar state PA ^
clean limpo estar state ACOUBRVQ cleaner
dirty sujo estar state ACOUBRVQ dirtier
wet molhado estar state ACOUVQ
dry seco estar state COUVQN
broken quebrado estar state OUVMQ
empty vazio estar state BRVk
cold frio estar state FDBRN colder
hot quente estar state FD hotter
intelligent inteligente ser character PA more
kind gentil ser character P kinder
honest honesto ser character P more
brave corajoso ser character PA braver
shy tímido ser character PA
rich rico ser character P richer
poor pobre ser character P poorer
lazy preguiçoso ser character PA lazier
generous generoso ser character P more
creative criativo ser character PI more
loyal leal ser character PA
strong forte ser character PADV stronger
weak fraco ser character PAD weaker
fast rápido ser character AV faster
slow lento ser character AV slower
serious sério ser character PI
noisy barulhento ser character AVRB noisier
red vermelho ser colour CFOUVBQN
blue azul ser colour COUVBQN
green verde ser colour CFOUVBQN
yellow amarelo ser colour CFOUVBQN
black preto ser colour ACOUVBQM
white branco ser colour ACOUVBQM
brown marrom ser colour ACOUVBQM
purple roxo ser colour COUVBQ
Brazilian brasileiro ser origin PFDCOVIRM
French francês ser origin PFDCOVIRM
Italian italiano ser origin PFDCOVIRM
German alemão/alemã/alemães/alemãs ser origin PFDCOVIRM
Japanese japonês ser origin PFDCOVIRM
Portuguese português ser origin PFDCOVIRM
Mexican mexicano ser origin PFDCOVIRM
"""
