"""Data sets by name: counts as published, messages that help, UCI's archives read offline."""

import base64
import gzip
import zipfile
import zlib

import numpy as np
import pooch
import pytest
from milzoo.datasets import Bags, available, load, published_folds
from milzoo.datasets import catalogue as catalogue_module
from milzoo.datasets.catalogue import BAGGING_SEED
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.neighbors import KNeighborsClassifier

# name: positive bags, negative bags, instances, features, smallest bag, largest bag
PUBLISHED = {
    "musk1": (47, 45, 476, 166, 2, 40),
    "musk2": (39, 63, 6598, 166, 1, 1044),
    "elephant": (100, 100, 1391, 230, 2, 13),
    "fox": (100, 100, 1320, 230, 2, 13),
    "newsgroups/alt_atheism": (50, 50, 5443, 200, 22, 76),
    "newsgroups/comp_graphics": (50, 50, 3094, 200, 12, 58),
    "newsgroups/rec_sport_hockey": (50, 50, 1982, 200, 8, 38),
}

# UCI's rows in small, and the same packed by ncompress 4.2.4 as UCI packs clean1.data.Z.
MUSK_ROWS = b"".join(
    b"MUSK-%d,%d_1+%d,%d,%d,%d.\n" % (k // 4, k, k % 4, k * 37 % 101 - 50, k * 53 % 89, k // 4 % 2)
    for k in range(40)
)
PACKED_MUSK_ROWS = base64.b85decode(
    b"ADxg*s!UnZ0tO2hUt+8<*rJBPhb|NZ99WP=jD#y<uxJru28$XVVMLrr(4Y*AGFZr<Ve!VnkpfGyn1Rt_3mOJ"
    b"*K$IAhBMTZB8G4+-G6qbF8f#$GNR$N*mqvLaWnly5#u)}{XpBnI=Z%^ypw_T>lwe96L4UHef#aoAvn+Bf-6+"
    b"H0jFckZwn!NRp+decag5E|mG4D`Hfgw|k;83Qk1<XvWZ2gt<gzUw(^RNYhD#eZ$m)d*^zT)dSVcd!s1)%*r<"
    b"e5>tvY$;VwZ$_7X8YZE>w-VDHcU*y0Q(H!3h?X>sqnOw#gf+^t*6ljKEtlkCkya<Mf|nx%S*Hc}2>bEE|ibx"
    b"P9{qo1gh&4!tsMY8j!U({JrPGs_!|>8BEH=FRj|Nb{-0+j~Fd<XBHG$v|9nd#z>AdIUwtoOd0mR1{{YQJ0cK"
    b"VL=7rOx@WO14}eyr&n8dr6q$$gJA}vdm7!86m&MuR9b;Isf1ULGw?T*M>o`{S7S2}C=^rbVaDWw8if{HS4>W"
    b"r5)CwlhG7d#ZfFyC-$ex"
)
# An "x", 300,000 "a", 15,000 "b" and 200 "musk", packed with codes of at most 10 bits
# (compress -b 10): the dictionary fills up, and is emptied where the b begin to cost too much.
PACKED_WITH_EMPTIED_DICTIONARY = zlib.decompress(
    base64.b85decode(
        b"c-rmQ?JwI20Kjp%6J%R15({1!E?X$tl30+-l9Oz~uuWoNyJKWqD6NMJhg_DNI}V4tx#QHG$BpUp1Eno(u`xw"
        b"G?P_Z0p{+js+F#pWtJMc>^<LbIdw=gP`F&q}{)lhHV0*)xfUpea$m^znpxA;H=8MJFz^j=9851wxc7!IDAFN"
        b"D_3ZF;bY!ACVIkwu3$R!u7PQDW16P~OM+-8k$^rzJ54pv!&t>M(B3s*9yi0?)-x?>C1rbuE!&S>Uf<}~>|<p"
        b"HbwaBZ3*VH7X6U&&%qKd>-ja-oP#+vij()&{dU^g~{QMRzFTFr@R1A72d5<}&4rZ9#F5*0~c3Vb|5Hq3oGSm"
        b"8dTfd$c~o(rk^~><GUzJEav9b19EDW~V_3^NDEa4v%fv=hlEn8$1pqU1+)(ahK0ED^|MWiZ=N(7R~l(*6>}y"
        b">?yd%!b&#<JUb*??1;EG$9Gx)F{Nm0PT;be6r$mK^K%}T!vadT=I6a$A3ubw(Ki?)`z|1gDEt0W5+G{|Ohd?"
        b"<FXv(8KZKSL<t<@#fV?%b1##SVtrv6rBVwF*+>T@e#~lgF2u0`hU5w(V6g5%t^9>uIc%JGPqwKmBT&DabBZ{"
        b"Q_H9JYG?9NGxQT5!<D^vaUpoFCAEvVC~@Wm}L>b|GFW$NEC<0SPTIJQ>ZU%eco8K~VY(+oDKNt&T&Hmzp3(J"
        b"vMlX$~$2UbID#ftQ_0I$*RbEmk|$lUJ^N)mK8+jt|u7w1knCSRHY!w_Haej+1p{DqE+cFqdON>eOyINaL!>A"
        b"f0d1fs6&eI6ZSI7^|OHiK6Hy*ONd!YdbB@FtwA1HB9f7Pz>yYI?%w8wZs{@%3iE-1{kLpXZ38*$TKa+L44~j"
        b"77{qr6ll(E1EF~zf23)_Hw0&T9S}`5y}6XEH!TLHBh5>f^Ks_4p`}#wa#+3IER1YLo~&HM<4#r)1nS8elA}K"
        b"nB?yt0_3ILxWg|sHwQSz7>n&TU{wVAAt&j@qyNqa>_0Q~NgH@c9jym1BpI>qM{y{12bhn`1a4IQoMcMYA;wx"
        b"+)Fa(<IFC52U+piX)><6`y3j1M$hGsu{W;fWSjs9qdtU098A#aPOJB~Y(jSfXuI@+o1$***(`bz0e^+3JRsT"
        b"pZSp8;d|$}=sIKtIz_ImR=PDMY*UQ<6%TfvcgrjC{M%1ugi;yG=_WRc`Z2G{b$eo(#Dy+v)Kh>rQ@^=X9@>;"
        b"jtamLms=VHU8Y8#8;g=0RrRvOwWPNT_$0?*KL(lc|8sd!+Y+wL*9RT__*!UmQWZN7#J8B7#J8B7#J8B7#J9s"
        b"|ALRN&p$o>=)(Wu2RlpqKdad-*yKM<EZG|PygnQ?TMLLsa=X(6Urd)ts70J16t7Od&#VzI3%=x3NcrE|!_oW"
        b"(lVYJeD1EMA<}1zmaPlx(@QoGRX5|X!3VB~c2lMsNCw~K~zX3b"
    )
)


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """A user without data folder, without network, and with an empty cache."""

    def no_network(*arguments, **options):
        raise OSError("the network is unreachable")

    monkeypatch.delenv("MILZOO_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", no_network)
    return tmp_path


# -------------------------------------------------------------------------- digits


@pytest.fixture(scope="module")
def digits() -> Bags:
    return load("digits")


def image_of_each_instance(bags):
    """The number of each image in scikit-learn's digits, whose 1,797 images all differ."""
    images = load_digits().data
    number = {image.tobytes(): i for i, image in enumerate(images)}
    assert len(number) == len(images) == 1797
    return [number[row.tobytes()] for row in bags.instances]


def test_digits_have_82_bags_of_each_label(digits):
    assert (digits.num_bags, digits.labels.sum()) == (164, 82)
    assert set(digits.bag_sizes) == {10}
    assert digits.num_features == 64
    assert (digits.instances.min(), digits.instances.max()) == (0, 16)


def test_each_digit_image_is_in_one_bag_at_most(digits):
    numbers = image_of_each_instance(digits)
    assert len(set(numbers)) == len(numbers) == 1640


def test_digits_have_as_many_bags_as_possible(digits):
    others = (~np.isin(load_digits().target, (2, 9))).sum()
    assert others - (digits.instance_labels == 0).sum() < 10


def test_positive_digits_are_one_to_four_twos_and_nines(digits):
    targets = load_digits().target[image_of_each_instance(digits)]
    np.testing.assert_array_equal(digits.instance_labels, np.isin(targets, (2, 9)))
    positives = np.bincount(digits.bag_index, weights=digits.instance_labels)
    np.testing.assert_array_equal(digits.labels, positives > 0)
    numbers, bags = np.unique(positives[digits.labels == 1], return_counts=True)
    assert numbers.tolist() == [1, 2, 3, 4]
    assert bags.tolist() == [21, 21, 20, 20]


def test_positive_images_stand_anywhere_in_a_bag(digits):
    by_position = digits.instance_labels.reshape(-1, 10).sum(axis=0)
    assert (by_position > 0).all()


def test_digits_are_the_same_everywhere_and_always(digits):
    again = load("digits", seed=BAGGING_SEED)
    np.testing.assert_array_equal(again.instances, digits.instances)
    # Recorded when the data set was defined; a change would be another data set.
    assert "".join(map(str, digits.labels[:20])) == "10011010110101000111"
    assert image_of_each_instance(digits)[:5] == [856, 473, 694, 1445, 1430]


def test_another_seed_draws_other_bags(digits):
    other = load("digits", seed=1)
    assert other.num_bags == 164
    assert (other.instances != digits.instances).any()


# --------------------------------------------------------------------------- the scene


@pytest.fixture(scope="module")
def scene() -> Bags:
    return load("kandemir2014")


def test_the_scene_has_20_bags_of_each_label(scene):
    assert (scene.num_bags, scene.labels.sum(), scene.num_features) == (40, 20, 2)
    assert (scene.bag_sizes.min(), scene.bag_sizes.max()) == (6, 12)
    assert np.isfinite(scene.instances).all()


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_positive_bags_of_the_scene_alone_have_witnesses(seed):
    bags = load("kandemir2014", seed=seed)
    witnesses = np.bincount(bags.bag_index, weights=bags.instance_labels)
    np.testing.assert_array_equal(bags.labels, witnesses > 0)


def test_three_in_ten_instances_of_positive_bags_are_witnesses():
    drawn = [load("kandemir2014", seed=seed) for seed in range(200)]
    labels = np.concatenate([b.instance_labels[b.labels[b.bag_index] == 1] for b in drawn])
    # In a bag of n one more with probability 0.7ⁿ; 9,000 witnesses, one look, 4.5 sd.
    fraction = 0.3 + np.mean(0.7 ** np.arange(6, 13)) / 9
    assert abs(labels.mean() - fraction) < 4.5 * np.sqrt(fraction * (1 - fraction) / len(labels))


def test_classes_of_the_scene_overlap_but_are_separable():
    drawn = [load("kandemir2014", seed=seed) for seed in range(50)]
    instances = np.concatenate([bags.instances for bags in drawn])
    labels = np.concatenate([bags.instance_labels for bags in drawn])
    neighbours = KNeighborsClassifier(50)
    predicted = cross_val_predict(neighbours, instances, labels, method="predict_proba")[:, 1]
    # 0.992 with the densities that they were drawn from.
    assert 0.98 < roc_auc_score(labels, predicted) < 0.995


def test_the_scene_is_the_same_everywhere_and_always(scene):
    again = load("kandemir2014", seed=BAGGING_SEED)
    np.testing.assert_array_equal(again.instances, scene.instances)
    # Recorded when the data set was defined; a change would be another data set.
    assert "".join(map(str, scene.labels[:20])) == "10011101100011011100"
    assert (scene.num_instances, scene.instance_labels.sum()) == (360, 49)
    np.testing.assert_allclose(scene.instances[0], [-1.73855719, -0.27142467], atol=1e-8)


def test_another_seed_draws_another_scene(scene):
    other = load("kandemir2014", seed=1)
    assert other.num_bags == 40
    assert other.instances.shape != scene.instances.shape


def test_the_scene_of_four_has_four_witness_clusters():
    bags = load("venkatesan2015")
    assert (bags.num_bags, bags.labels.sum(), bags.num_features) == (80, 40, 2)
    witnesses = np.bincount(bags.bag_index, weights=bags.instance_labels)
    np.testing.assert_array_equal(bags.labels, witnesses > 0)
    centres = np.array([[-4.0, 4.0], [4.0, 4.0], [-4.0, -4.0], [2.2, -0.6]])
    found = bags.instances[bags.instance_labels == 1]
    distance = np.linalg.norm(found[:, None] - centres, axis=2)
    assert (
        distance.min(axis=1) < 4.5 * np.array([0.45, 0.45, 0.45, 0.35])[distance.argmin(1)]
    ).all()
    # Of about 115 each quarter has at least 14 but for a chance of 1e-4.
    assert np.bincount(distance.argmin(axis=1), minlength=4).min() >= 14


def test_the_scene_of_four_is_reproducible():
    bags = load("venkatesan2015")
    # Recorded when the data set was defined; a change would be another data set.
    assert (bags.num_instances, bags.instance_labels.sum()) == (721, 111)
    np.testing.assert_allclose(bags.instances[0], [2.52702022, -0.31505414], atol=1e-8)
    assert (load("venkatesan2015", seed=1).instances[0] != bags.instances[0]).any()


# ----------------------------------------------------------------------- the folder


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_data_sets_have_the_published_counts(name, data_folder):
    bags = load(name, data_folder=data_folder)
    sizes = bags.bag_sizes
    assert PUBLISHED[name] == (
        bags.labels.sum(),
        (bags.labels == 0).sum(),
        bags.num_instances,
        bags.num_features,
        sizes.min(),
        sizes.max(),
    )


@pytest.mark.in_ci
def test_every_shared_data_set_loads(data_folder):
    for name in set(available()) - {"digits", "mnist", "kandemir2014", "venkatesan2015"}:
        assert load(name, data_folder=data_folder).num_bags >= 92


def test_hockey_posts_have_instance_labels(data_folder):
    bags = load("newsgroups/rec_sport_hockey", data_folder=data_folder)
    assert (bags.instance_labels == 1).sum() == 67
    assert (bags.instance_labels == 0).sum() == 1915


def test_musk2_repeats_rows_and_elephant_has_constant_columns(data_folder):
    musk2 = load("musk2", data_folder=data_folder)
    assert len(np.unique(musk2.instances, axis=0)) == 6598 - 17
    elephant = load("elephant", data_folder=data_folder)
    constant = np.ptp(elephant.instances, axis=0) == 0
    assert constant.sum() == 120
    np.testing.assert_array_equal((elephant.standardize().instances == 0).all(axis=0), constant)


def test_mnist_has_the_papers_7000_bags(data_folder):
    if not (data_folder / "mnist.npz").is_file():
        pytest.skip(f"no mnist.npz in {data_folder}")
    bags = load("mnist", data_folder=data_folder)
    assert (bags.num_bags, bags.labels.sum(), bags.num_instances) == (7000, 3500, 70000)
    assert (bags.instances.min(), bags.instances.max()) == (0, 1)
    assert bags.num_features == 784
    positives = np.bincount(bags.bag_index, weights=bags.instance_labels)
    assert set(positives[bags.labels == 0]) == {0}
    assert set(positives[bags.labels == 1]) == {1, 2, 3, 4}


def tiny_mnist(folder):
    """Each image one pixel: its number."""
    numbers = np.arange(250, dtype=np.uint8)
    np.savez(
        folder / "mnist.npz",
        x_train=numbers[:200].reshape(-1, 1, 1),
        x_test=numbers[200:].reshape(-1, 1, 1),
        y_train=numbers[:200] % 10,
        y_test=numbers[200:] % 10,
    )


def test_mnist_reads_train_and_test_images_with_their_digits(tmp_path, monkeypatch):
    tiny_mnist(tmp_path)
    bags = load("mnist", data_folder=tmp_path)
    numbers = np.rint(bags.instances[:, 0] * 255)
    np.testing.assert_array_equal(bags.instance_labels, np.isin(numbers % 10, (2, 9)))
    assert numbers.max() >= 200


def test_a_file_of_ones_own_loads_by_its_name(tmp_path, monkeypatch):
    frame = Bags.from_list(
        [[[1.5], [2.5]], [[0.5]]], [1, 0], [[1, -1], [0]], ["NA", "b"]
    ).to_frame()
    with gzip.open(tmp_path / "my_own.csv.gz", "wt") as file:
        frame.to_csv(file, index=False)
    monkeypatch.setenv("MILZOO_DATA", str(tmp_path))
    bags = load("my/own")
    assert bags.instances.tolist() == [[1.5], [2.5], [0.5]]
    assert bags.instance_labels.tolist() == [1, -1, 0]
    assert bags.names == ("NA", "b")


def test_a_table_loads_by_its_path(tmp_path):
    frame = Bags.from_list([[[1.5], [2.5]], [[0.5]]], [1, 0]).to_frame()
    frame.rename(columns={"x0": "width"}).to_csv(tmp_path / "molecules.csv", index=False)
    assert load(str(tmp_path / "molecules.csv")).instances.tolist() == [[1.5], [2.5], [0.5]]
    with pytest.raises(FileNotFoundError, match=r"no file atoms\.csv; expected a table, one row"):
        load("atoms.csv")


# ------------------------------------------------------------------- published folds


@pytest.mark.parametrize("name", ["musk1", "elephant", "fox", "newsgroups/comp_graphics"])
def test_published_folds_test_every_bag_once_in_each_repetition(name, data_folder):
    bags, folds = (
        load(name, data_folder=data_folder),
        published_folds(name, data_folder=data_folder),
    )
    assert folds.shape == (bags.num_bags, 5)
    for repetition in folds.T:
        counts = np.bincount(repetition, minlength=11)
        assert counts[0] == 0
        assert counts[1:].min() >= bags.num_bags // 10 - 1
        assert counts[1:].max() <= bags.num_bags // 10 + 2
    positives = [bags.labels[folds[:, 0] == fold].sum() for fold in range(1, 11)]
    assert max(positives) - min(positives) <= 2


def test_folds_go_with_the_bags_of_their_names(data_folder):
    folds = published_folds("musk1", data_folder=data_folder)
    names = load("musk1", data_folder=data_folder).names
    assert folds[names.index("MUSK-190")].tolist() == [9, 1, 2, 1, 4]


def test_the_order_of_a_folds_file_is_irrelevant(tmp_path):
    frame = Bags.from_list([[[1.0]], [[2.0]]], [1, 0], names=["a", "b"]).to_frame()
    frame.to_csv(tmp_path / "mine.csv.gz", index=False)
    (tmp_path / "folds").mkdir()
    file = tmp_path / "folds" / "mine.folds.csv"
    file.write_text("bag,rep1,rep2\nb,2,1\na,1,2\n")
    assert published_folds("mine", data_folder=tmp_path).tolist() == [[1, 2], [2, 1]]
    file.write_text("bag,rep1\nb,2\nc,1\n")
    with pytest.raises(ValueError, match="must have the same bags, each once; 2 are in only one"):
        published_folds("mine", data_folder=tmp_path)
    file.write_text("bag,rep1\nb,2\na,1\na,2\n")
    with pytest.raises(ValueError, match="must have the same bags, each once"):
        published_folds("mine", data_folder=tmp_path)


def test_missing_folds_say_where_they_were_looked_for(nowhere):
    with pytest.raises(FileNotFoundError, match=r"no folds/fox.folds.csv in any folder .* not set"):
        published_folds("fox")
    with pytest.raises(
        FileNotFoundError, match=f"'fox': no folds/fox.folds.csv in .*{nowhere.name}"
    ):
        published_folds("fox", data_folder=nowhere)


# -------------------------------------------------------------------------- messages


def test_available_describes_every_data_set_in_a_line():
    described = available()
    named = {
        "digits",
        "kandemir2014",
        "venkatesan2015",
        "musk1",
        "musk2",
        "elephant",
        "fox",
        "mnist",
    }
    assert named < set(described)
    assert sum(name.startswith("newsgroups/") for name in described) == 10
    assert all(0 < len(text) < 100 and "\n" not in text for text in described.values())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digit", "unknown data set 'digit'; did you mean 'digits'?"),
        ("Elefant", "did you mean 'elephant'?"),
        ("newsgroups/rec_sport_hokey", "did you mean 'newsgroups/rec_sport_hockey'?"),
        ("zzz", "unknown data set 'zzz'; known are digits, kandemir2014, venkatesan2015"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        load(name)


def test_a_seed_is_refused_where_nothing_is_drawn():
    with pytest.raises(ValueError, match="seed is 1, but the bags of 'musk1' are not drawn"):
        load("musk1", seed=1)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("fox", "fox.csv.gz"),
        ("newsgroups/sci_space", "newsgroups_sci_space.csv.gz"),
        ("mnist", "mnist.npz"),
    ],
)
def test_a_missing_file_says_what_where_and_how(name, file, nowhere):
    with pytest.raises(FileNotFoundError) as caught:
        load(name)
    assert f"data set {name!r}: no {file} in any folder (MILZOO_DATA is not set)" in str(
        caught.value
    )
    assert "set MILZOO_DATA to its folder" in str(caught.value)
    with pytest.raises(FileNotFoundError, match=f"no {file} in the folder .*{nowhere.name}"):
        load(name, data_folder=nowhere)


# ------------------------------------------------------------------------------ musk


def write_archive(cache, name, member, content):
    cache.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(cache / f"{name}.zip", "w") as archive:
        archive.writestr("Index", b"")
        archive.writestr(member, content)


def test_offline_musk_says_what_where_and_how(nowhere):
    with pytest.raises(FileNotFoundError) as caught:
        load("musk1", data_folder=nowhere)
    message = str(caught.value)
    for part in (
        f"data set 'musk1': no musk1.csv.gz in the folder {nowhere}",
        f"no musk1.zip in the cache {pooch.os_cache('milzoo')}",
        "https://archive.ics.uci.edu/static/public/74/musk+version+1.zip could not be fetched",
        "the network is unreachable",
        "go online",
        "set MILZOO_DATA",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("member", "content"),
    [
        ("clean1.data", MUSK_ROWS),
        ("musk/clean1.data.Z", PACKED_MUSK_ROWS),
    ],
)
def test_musk_is_read_from_the_archive_in_the_cache(member, content, nowhere, monkeypatch):
    monkeypatch.setitem(catalogue_module._MUSK_COUNTS, "musk1", (10, 40))
    write_archive(pooch.os_cache("milzoo"), "musk1", member, content)
    bags = load("musk1")
    assert bags.names == tuple(f"MUSK-{b}" for b in range(10))
    assert bags.labels.tolist() == [0, 1] * 5
    assert bags.bag_sizes.tolist() == [4] * 10
    k = np.arange(40)
    np.testing.assert_array_equal(bags.instances, np.column_stack([k * 37 % 101 - 50, k * 53 % 89]))


def test_the_data_folder_comes_before_the_cache(nowhere):
    write_archive(pooch.os_cache("milzoo"), "musk1", "clean1.data", b"unreadable")
    frame = Bags.from_list([[[1.0]], [[2.0]]], [1, 0]).to_frame()
    frame.to_csv(nowhere / "musk1.csv.gz", index=False)
    assert load("musk1", data_folder=nowhere).num_bags == 2


def test_an_archive_with_other_counts_or_files_is_refused(nowhere):
    cache = pooch.os_cache("milzoo")
    write_archive(cache, "musk1", "clean1.data", MUSK_ROWS)
    with pytest.raises(
        ValueError, match=r"10 molecules and 40 conformations; expected \(92, 476\)"
    ):
        load("musk1")
    write_archive(cache, "musk1", "clean2.data", MUSK_ROWS)
    with pytest.raises(ValueError, match=r"holds \['Index', 'clean2.data'\]; expected clean1.data"):
        load("musk1")


def test_a_cached_file_that_is_no_archive_is_named(nowhere):
    cache = pooch.os_cache("milzoo")
    cache.mkdir(parents=True)
    (cache / "musk1.zip").write_text("<html>try again later</html>")
    with pytest.raises(
        ValueError, match=r"musk1.zip is not a zip archive .*; delete it to have it fetched again"
    ):
        load("musk1")


def test_uncompress_undoes_unix_compress():
    assert catalogue_module._uncompress(PACKED_MUSK_ROWS) == MUSK_ROWS
    assert (
        catalogue_module._uncompress(PACKED_WITH_EMPTIED_DICTIONARY)
        == b"x" + b"a" * 300_000 + b"b" * 15_000 + b"musk" * 200
    )
    with pytest.raises(ValueError, match="not a file packed by Unix compress"):
        catalogue_module._uncompress(gzip.compress(b"musk"))


def test_importing_the_wing_loads_nothing_heavy():
    import subprocess
    import sys

    program = (
        "import sys, milzoo.datasets; milzoo.datasets.available();"
        "print([m for m in ('pandas', 'sklearn', 'pooch', 'numpyro', 'scipy') if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert output.stdout.strip() == "[]", output.stderr
