// SPDX-License-Identifier: Apache-2.0

package main

import "math"

// A contender is a row of a table: a policy with its parameters.
type contender struct {
	name  string
	build func(ids, capacity int) policy
}

// chosen are the parameters that the decision record settles on.
func chosen() logConfig {
	return logConfig{small: smallPart, promote: 1, ghosts: 4, room: unwritten}
}

// policies are the policies to choose from, and two bounds: what no policy can beat, and what no size can.
func policies() []contender {
	return []contender{
		{"LRU", func(ids, capacity int) policy { return newLRU(ids, capacity) }},
		{"random replacement", func(ids, capacity int) policy { return newRandom(ids, capacity) }},
		{"SIEVE", func(ids, capacity int) policy { return newSieve(ids, capacity) }},
		{"S3-FIFO", func(ids, capacity int) policy { return newS3FIFO(ids, capacity) }},
		{"S3-FIFO on a log", logs(chosen())},
		{"*MIN, which knows the future*", func(ids, capacity int) policy { return newOracle(ids, capacity) }},
		{"*nothing evicted*", func(ids, _ int) policy { return newRandom(ids, math.MaxInt) }},
	}
}

// variants change one parameter of the log at a time.
func variants() []contender {
	change := func(name string, edit func(*logConfig)) contender {
		cfg := chosen()
		edit(&cfg)
		return contender{name, logs(cfg)}
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
		{"chosen, in 64 shards", func(ids, capacity int) policy { return newSharded(64, ids, capacity, logs(chosen())) }},
	}
}

func logs(cfg logConfig) func(ids, capacity int) policy {
	return func(ids, capacity int) policy { return newTwoLogs(cfg, ids, capacity) }
}
