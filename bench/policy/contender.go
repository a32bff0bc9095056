// SPDX-License-Identifier: Apache-2.0

package main

import "math"

// A contender is a row of a table: a policy with its parameters.
type contender struct {
	name   string
	build  func(ids, capacity int) policy
	byName bool // it keeps NXDOMAIN once for all types of a name
}

// unbounded is the row of a cache that never has to evict.
const unbounded = "*nothing evicted*"

// chosen are the parameters that the decision record settles on.
func chosen() logConfig {
	return logConfig{small: smallPart, promote: 1, ghosts: 4, room: unwritten}
}

// policies are the policies to choose from, what the cache makes of the chosen one, and who shows how much is left: one
// that knows the future, and one without a bound.
func policies() []contender {
	return []contender{
		{name: "LRU", build: func(ids, capacity int) policy { return newLRU(ids, capacity) }},
		{name: "random replacement", build: func(ids, capacity int) policy { return newRandom(ids, capacity) }},
		{name: "SIEVE", build: func(ids, capacity int) policy { return newSieve(ids, capacity) }},
		{name: "S3-FIFO", build: func(ids, capacity int) policy { return newS3FIFO(ids, capacity) }},
		{name: "S3-FIFO on a log", build: logs(chosen())},
		{name: "S3-FIFO on a log, denials by name", build: logs(chosen()), byName: true},
		{name: "*MIN, which knows the future*", build: func(ids, capacity int) policy { return newOracle(ids, capacity) }},
		{name: unbounded, build: func(ids, _ int) policy { return newRandom(ids, math.MaxInt) }},
	}
}

// variants change one parameter of the log at a time.
func variants() []contender {
	change := func(name string, edit func(*logConfig)) contender {
		cfg := chosen()
		edit(&cfg)
		return contender{name: name, build: logs(cfg)}
	}
	return []contender{
		change("chosen", func(*logConfig) {}),
		change("small log 5 %", func(c *logConfig) { c.small = 5 }),
		change("small log 20 %", func(c *logConfig) { c.small = 20 }),
		change("promotion after 2 uses", func(c *logConfig) { c.promote = 2 }),
		change("no ghosts", func(c *logConfig) { c.ghosts = 0 }),
		change("a ghost for 4 slots", func(c *logConfig) { c.ghosts = 1 }),
		change("4 ghosts for a slot", func(c *logConfig) { c.ghosts = 16 }),
		change("stored again at a head", func(c *logConfig) { c.anew = true }),
		change("main takes no unused entry", func(c *logConfig) { c.room = noRoom }),
		change("main always takes them where it costs nothing fresh", func(c *logConfig) { c.room = expired }),
		{name: "chosen, in 64 shards", build: func(ids, capacity int) policy { return newSharded(64, ids, capacity, logs(chosen())) }},
	}
}

func logs(cfg logConfig) func(ids, capacity int) policy {
	return func(ids, capacity int) policy { return newTwoLogs(cfg, ids, capacity) }
}
