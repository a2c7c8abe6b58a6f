"""A short story, written for this course, as text for small language models.

Its sentences are simple and have a refrain, so that a model of a hundred thousand parameters learns from it in seconds.
The course's licence applies. The story contains only lower-case letters, spaces, line breaks and `.,;?`.
"""

STORY = """\
there is a harbour at the end of a long road. a lighthouse stands on the left, and a bakery stands on the right.
between the lighthouse and the bakery lies the water, and on the water lies a small red boat.

on monday the wind came from the north. the small red boat went out to fish, and the cat sat on the wall and waited.
the keeper of the lighthouse counted the waves, and the baker counted the loaves.
in the evening the lamp was lit, the boat came back, and the cat had a fish.

on tuesday the wind came from the east.
the small red boat went out to the island with a box of bread and a box of nails.
the keeper of the lighthouse painted the door, and the baker painted the shelf.
in the evening the lamp was lit, the boat came back, and the cat had a crumb.

on wednesday there was no wind. the small red boat did not go out, and the cat slept in it all day long.
the keeper of the lighthouse cleaned the glass of the lamp, and the baker cleaned the stones of the oven.
in the evening the lamp was lit, the boat was there already, and the cat had a drop of milk.

on thursday the wind came from the south. the small red boat went out to fish, and the cat went with it.
the keeper of the lighthouse looked for the cat, and the baker looked for the cat.
is the cat behind the door? no, behind the door there is a broom. is the cat under the shelf?
no, under the shelf there is a sack.
is the cat in the lamp? no, in the lamp there is a light. where is the cat?
in the evening the lamp was lit, the boat came back, and the cat had seven fish.

on friday the wind came from the west, and it brought rain.
the rain fell on the lighthouse, and the rain fell on the bakery.
the rain fell on the water, and the rain fell into the small red boat.
the keeper of the lighthouse read a book about storms, and the baker read a book about cakes.
in the evening the lamp was lit, the boat was full of water, and the cat had a warm stone.

on saturday the rain had gone. the keeper of the lighthouse took a bucket, and the baker took a bucket.
one bucket, two buckets, three buckets; the water went from the boat into the harbour.
four buckets, five buckets, six buckets; the water in the boat was as high as a hand.
seven buckets, eight buckets, nine buckets; the boat was dry, and so the small red boat went out to fish.
in the evening the lamp was lit, the boat came back, and the cat had a fish and a crumb and a drop of milk.

on sunday the wind came from the north again. the bakery was closed, and the boat lay in the harbour.
the keeper of the lighthouse made tea, and the baker brought a cake.
the cake was as round as the lamp, and as sweet as the tea.
they sat on the wall between the lighthouse and the bakery, and the cat sat between the keeper and the baker.
they looked at the water, and they looked at the boat. a bird flew from the lighthouse to the bakery and back.
in the evening the lamp was lit, the stars came out, and the cat had nothing, for the cat was asleep.

what does the wind bring to the harbour? the wind brings the rain, and the wind brings the birds.
what does the boat bring to the harbour? the boat brings the fish, and the boat brings the nets.
what does the road bring to the harbour? the road brings the flour for the baker, and the oil for the lamp.
the flour becomes bread, and the bread goes to the island. the oil becomes light, and the light goes to the sea.

who sees the light? the fisher sees the light and turns the boat. the bird sees the light and turns away.
the moon sees the light and thinks that it is a star.
the keeper of the lighthouse sees no light, for the keeper is under the lamp.
who smells the bread? the fisher smells the bread and comes to the bakery.
the bird smells the bread and waits at the door.
the cat smells the bread and thinks of fish. the baker smells no bread, for the baker is beside the oven.

in spring the road is green, and the boat is painted red again.
in summer the road is white with dust, and the boat is out all day.
in autumn the road is brown with leaves, and the boat comes back early.
in winter the road is white with snow, and the boat lies on the land.
in spring and in summer, in autumn and in winter, in the evening the lamp is lit, and the cat waits for the boat.

so the days go round, and so the years go round, as the light of the lamp goes round above the water.
if you come down the long road to the harbour, look to the left, and look to the right.
on the left stands the lighthouse, and on the right stands the bakery.
between the lighthouse and the bakery lies the water.
and on the water, if the evening has come and the lamp is lit, lies a small red boat,
and on the wall beside it sits a cat.
"""
