"""The verbs of the micro-world, one per line: English, Portuguese, kinds of subject, kinds of object, flags.

`eat/ate/eaten` gives irregular forms. `look+at olhar+para` gives the preposition of each language; in `enter entrar+em`
one language has none. Object `-`: none. Flags: `s` a state (no progressive, no passive, no command), `c` deliberate
(has a command); with `c`, `m a e h v` are the groups of adverbs that it takes (table in `lexicon`). English verbs whose
past equals their present (*read*, *put*, *cut*) are excluded, because the sentence would not determine their tense.
"""

TRANSITIVE = """
eat/ate/eaten comer PA F c
drink/drank/drunk beber PA D c
cook cozinhar P F c
taste provar P FD c
wash lavar P CV c
wear/wore/worn usar P C -
use usar P O c
buy/bought comprar P FDCOUVM -
sell/sold vender P FDCOUVM -
see/saw/seen ver PA PABVNH s
find/found encontrar PA OCA -
lose/lost perder P OC -
open abrir P k c
close fechar P k c
paint pintar P BUVQ c
draw/drew/drawn desenhar P ABNP c
build/built construir P B -
carry carregar P OUM c
bring/brought trazer P OFD -
receive receber P Ot -
write/wrote/written escrever P t c
translate traduzir P t c
study estudar P S -
teach/taught ensinar P S -
love amar P SPANH s
hate odiar P SFDI s
like gostar+de P PAFDCOUBRVNIMSHYZ s
need precisar+de P OFUVCPMH s
prefer preferir P FDSCV s
want querer P FDOCVM s
have/had ter P OCVAM s
help ajudar PG PAHG -
visit visitar P PBRHYZ -
call chamar P PAH -
invite convidar PG PH -
greet cumprimentar P PH c
hug abraçar P PAH c
kiss beijar P PAH c
follow seguir PA PAVH c
protect proteger PAG PANB c
feed/fed alimentar P A c
hear/heard ouvir PA PAH s
look+at olhar+para PA PANOQH c
understand/understood entender P IS s
explain explicar P I c
forget/forgot/forgotten esquecer P OCI s
discover descobrir P IN -
describe descrever P PBRNI c
photograph fotografar P ANBR -
touch tocar PA OUMQ c
play tocar P M -
push empurrar P VU c
pull puxar PA VU c
throw/threw/thrown jogar P O -
hide/hid/hidden esconder P OFC c
fix consertar P VUMQ c
choose/chose/chosen escolher P OCFV c
steal/stole/stolen roubar P OFVC -
finish terminar P It -
begin/began/begun começar P I -
drive/drove/driven dirigir P d c
cross atravessar PA x c
climb escalar P c c
enter entrar+em PA BR^o -
leave/left sair+de P BRYZ -
arrive+at chegar+a P BR -
go/went/gone+to ir+a P BRYZ -
return+to voltar+a P BRYZ -
travel+to viajar+para P YZ -
live+in morar+em P BRYZ -
walk+through andar+por PA x c
pass+through passar+por PA x c
wait+for esperar PA PVH -
look+for procurar PA OPAH -
talk+to falar+com P PH -
answer responder+a P PH -
obey obedecer+a PA PH s
trust confiar+em P PAH s
believe+in acreditar+em P PHI s
think/thought+about pensar+em P PAHIS -
dream+about sonhar+com P PAHV -
depend+on depender+de P PHG s
laugh+at rir+de P PAH -
admire admirar P PANBH s
defend defender PG PAHIZ -
support apoiar PG PGHI -
criticize criticar PG PGHI -
"""

INTRANSITIVE = """
sleep/slept/slept dormir PA - av
run/ran/run correr PA - m
walk andar PA - m
swim/swam/swum nadar PA - m
jump pular PA - mh
fly/flew/flown voar w - mh
sing/sang/sung cantar Pw - av
dance dançar P - av
cry chorar P - a
smile sorrir P - a
laugh rir P - a
work trabalhar P - av
travel viajar P - ae
fall/fell/fallen cair PA - m
wait esperar PA - a
rest descansar PA - a
wake/woke/woken+up acordar PA - e
arrive chegar P - e
shout gritar P - a
speak/spoke/spoken falar P - av
study estudar P - av
cook cozinhar P - av
paint pintar P - av
complain reclamar P - a
disappear desaparecer PA - m
win/won/won vencer P - -
"""

DATIVE = """
give/gave/given dar P OFCDM -
show/showed/shown mostrar P OCMt -
offer oferecer P OFDM -
send/sent enviar P OtC -
lend/lent emprestar P OCM -
deliver entregar P OFDt -
"""

WITH_INFINITIVE = """
want+to querer P - s
need+to precisar P - s
like+to gostar+de P - s
try+to tentar P - -
start+to começar+a P - -
decide+to decidir P - -
"""

WITH_CLAUSE = """
say/said dizer P - s
think/thought achar P - s
know/knew/known saber P - s
believe acreditar P - s
"""
