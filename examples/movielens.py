"""Pairs of users and items, and ratings with features, read from files or generated. NumPy only.

Pairs: a folder has `train.csv.gz`: a header and lines `uid,iid`. One pair of each user with at least three
is held out, drawn at random.
"""

import gzip
import os
import re

import numpy as np

import metrics

_PAIR = re.compile(r"\s*([+-]?\d+)\s*,\s*([+-]?\d+)\s*", re.ASCII)


def read_pairs(folder):
    """(users, items): two int64 [n] from `folder`/train.csv.gz. ValueError names a bad line."""
    path = os.path.join(folder, "train.csv.gz")
    pairs = []
    with gzip.open(path, "rt", encoding="ascii", errors="backslashreplace") as stream:
        header = stream.readline().strip()
        if header != "uid,iid":
            raise ValueError(f"{path}:1: expected the header 'uid,iid', found {header!r}")
        for number, line in enumerate(stream, start=2):
            match = _PAIR.fullmatch(line)
            pair = [int(text) for text in match.groups()] if match else []
            if not pair or min(pair) < -(2**63) or max(pair) >= 2**63:
                raise ValueError(
                    f"{path}:{number}: expected two integers of 64 bits, found {line.strip()!r}"
                )
            pairs.append(pair)
    pairs = np.array(pairs, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def generate_pairs(seed, users=1500, items=800, clusters=16, per_user=30):
    """Pairs of users and items where users mostly like the items of two of `clusters` clusters.

    Within a cluster some items are more popular than others. Ids are scattered 64-bit numbers,
    negative ones among them. Returns (users, items): two int64 [n], no pair twice.
    """
    rng = np.random.default_rng(seed)
    user_ids, item_ids = (rng.integers(-(2**62), 2**62, size) for size in (users, items))
    cluster = rng.integers(0, clusters, items)
    popularity = rng.pareto(1.5, items) + 0.2
    all_users, all_items = [], []
    for user in range(users):
        liked = np.isin(cluster, rng.choice(clusters, 2, replace=False))
        mass = popularity * np.where(liked, 1.0, 0.01)
        chosen = rng.choice(items, per_user, replace=False, p=mass / mass.sum())
        all_users.append(np.full(per_user, user_ids[user]))
        all_items.append(item_ids[chosen])
    return np.concatenate(all_users), np.concatenate(all_items)


def hold_out(users, rng, at_least=3):
    """Bool [n]: one random pair of each user that has `at_least` of them."""
    order = rng.permutation(users.size)
    _, first, counts = np.unique(users[order], return_index=True, return_counts=True)
    held_out = np.zeros(users.size, bool)
    held_out[order[first[counts >= at_least]]] = True
    return held_out


class Split:
    """Pairs to train on, and one held-out item for each of some users.

    Attributes:
      users, items: int64 [n], the pairs trained on.
      catalogue: int64 [items], the items in them, sorted; held-out items are among these.
      item_counts: int64 [items], how often each is trained on: its popularity.
      test_users: int64 [m], sorted.
      test_items: int64 [m], the held-out item of each.
    """

    def __init__(self, users, items, rng):
        held_out = hold_out(users, rng)
        self.users, self.items = users[~held_out], items[~held_out]
        self.catalogue, positions = np.unique(self.items, return_inverse=True)
        self.item_counts = np.bincount(positions)
        rankable = held_out & np.isin(items, self.catalogue)
        order = np.argsort(users[rankable])
        self.test_users = users[rankable][order]
        self.test_items = items[rankable][order]
        self._targets = np.searchsorted(self.catalogue, self.test_items)
        tested = np.isin(self.users, self.test_users)
        self._seen = (np.searchsorted(self.test_users, self.users[tested]), positions[tested])

    def recall(self, scores, k):
        """recall@k of scores [test users, catalogue]."""
        return metrics.recall_at_k(scores, self._targets, k, self._seen)

    def popularity_recall(self, k):
        """recall@k of plain popularity."""
        return self.recall(np.tile(self.item_counts, (self.test_users.size, 1)), k)

    def batches(self, rng, batch_size, negatives):
        """One epoch: (users [batch], their items [batch], random items [negatives]), all int64."""
        order = rng.permutation(self.users.size)
        for start in range(0, order.size, batch_size):
            part = order[start : start + batch_size]
            yield (self.users[part], self.items[part], rng.choice(self.catalogue, negatives))

    def describe(self):
        """Its sizes in a line."""
        return (
            f"{self.users.size:,} pairs of {np.unique(self.users).size:,} users and "
            f"{self.catalogue.size:,} items; {self.test_users.size:,} held out"
        )


# --- Ratings, as MovieLens 1M has them: ratings.dat, users.dat and movies.dat, fields between "::" ---

FEATURES = ("user_id", "movie_id", "gender", "age", "occupation", "year")


def _fields(path, patterns):
    """The fields of each line of a file. ValueError names a line whose fields do not match the patterns."""
    line_of = re.compile("::".join(f"({pattern})" for pattern in patterns), re.ASCII)
    with open(path, encoding="latin-1") as stream:
        for number, line in enumerate(stream, start=1):
            match = line_of.fullmatch(line.rstrip("\n"))
            if not match:
                raise ValueError(
                    f"{path}:{number}: expected {len(patterns)} fields between '::', found {line.strip()!r}"
                )
            yield match.groups()


def read_ratings(folder):
    """(ids {feature: int64 [n]}, ratings float32 [n]) of a folder of MovieLens 1M, oldest first.

    ValueError names a bad line, and a rating of a user or movie that is in no other file.
    """
    path = {name: os.path.join(folder, name + ".dat") for name in ("ratings", "users", "movies")}
    users = {
        int(user): (int(gender == "M"), int(age), int(occupation))
        for user, gender, age, occupation, _ in _fields(
            path["users"], (r"\d+", "[FM]", r"\d+", r"\d+", ".*")
        )
    }
    years = {
        int(movie): int(year)
        for movie, _, year, _ in _fields(path["movies"], (r"\d+", r".*\((\d{4})\)", ".*"))
    }
    rows = []
    for number, fields in enumerate(_fields(path["ratings"], [r"\d+"] * 4), start=1):
        user, movie, rating, time = map(int, fields)
        if user not in users or movie not in years:
            raise ValueError(
                f"{path['ratings']}:{number}: there is no user {user} or no movie {movie}"
            )
        rows.append((time, user, movie, *users[user], years[movie], rating))
    table = np.array(sorted(rows), np.int64).reshape(-1, 8)
    return dict(zip(FEATURES, table[:, 1:7].T)), table[:, 7].astype(np.float32)


def generate_ratings(seed, users=1000, movies=500, ratings=40_000):
    """Ratings, 1 to 5, of users who like movies, groups of ages that like decades, and chance. As read_ratings returns them."""
    rng = np.random.default_rng(seed)
    age = rng.choice([1, 18, 25, 35, 45, 50, 56], users)
    gender, occupation = rng.integers(0, 2, users), rng.integers(0, 21, users)
    year = rng.integers(1930, 2001, movies)
    by_user, by_movie = rng.normal(0, 0.4, users), rng.normal(0, 0.6, movies)
    taste = rng.normal(0, 0.5, [57, 8])  # of an age for a decade
    user = rng.integers(0, users, ratings)
    movie = np.minimum(rng.zipf(1.3, ratings) - 1, movies - 1)
    likes = by_user[user] + by_movie[movie] + taste[age[user], (year[movie] - 1930) // 10]
    rating = np.clip(np.round(3.5 + likes + rng.normal(0, 0.5, ratings)), 1, 5)
    columns = (user + 1, movie + 1, gender[user], age[user], occupation[user], year[movie])
    return dict(zip(FEATURES, map(np.int64, columns))), rating.astype(np.float32)
