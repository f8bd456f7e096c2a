"""The names of the micro-world, one per line: English, Portuguese and gender; `_` joins the words of one name.

People have no article. For a place or an organisation the gender gives the Portuguese article: `m` *o*, `f` *a*, `-`
none.
"""

PEOPLE = """
Maria f
Ana f
Júlia f
Beatriz f
Clara f
Helena f
Luísa f
Teresa f
Sofia f
Alice f
Laura f
Emma f
Pedro m
João m
Lucas m
Paulo m
Rafael m
Carlos m
Miguel m
Antônio m
Bruno m
Daniel m
André m
Oliver m
"""

SURNAMES = "Silva Souza Costa Oliveira Santos Almeida Ferreira Rocha"

CITIES = """
Lisbon Lisboa -
London Londres -
Paris Paris -
Rome Roma -
Berlin Berlim -
Madrid Madri -
Tokyo Tóquio -
Vienna Viena -
Moscow Moscou -
Brasília Brasília -
Salvador Salvador -
Curitiba Curitiba -
São_Paulo São_Paulo -
New_York Nova_York -
"""

COUNTRIES = """
Brazil Brasil m
Japan Japão m
Canada Canadá m
Mexico México m
Peru Peru m
Chile Chile m
Egypt Egito m
France França f
Italy Itália f
Germany Alemanha f
Spain Espanha f
Argentina Argentina f
India Índia f
China China f
Portugal Portugal -
Angola Angola -
Cuba Cuba -
"""

ORGANISATIONS = """
the_Red_Cross Cruz_Vermelha f
the_World_Bank Banco_Mundial m
the_Central_Bank Banco_Central m
the_National_Museum Museu_Nacional m
the_National_Library Biblioteca_Nacional f
the_European_Union União_Europeia f
the_Senate Senado m
UNESCO UNESCO f
NASA NASA f
"""
