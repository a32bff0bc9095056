// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"sync"
	"time"
)

// mostFailures is how many failures are reported in full.
const mostFailures = 10

// A tally is what has become of queries.
type tally struct {
	Answered uint64   `json:"answered"`
	Lost     uint64   `json:"lost"`               // no answer in time, or none at all
	Wrong    uint64   `json:"wrong"`              // answered without what was asked for
	Slowest  float64  `json:"slowest"`            // answer, in seconds
	Failures []string `json:"failures,omitempty"` // the first, with their times
}

// An epoch is what has become of the queries that were sent in some time. Each belongs to that of its start.
type epoch struct {
	inFlight sync.WaitGroup // queries that are under way
	udp      counts
	tcp      counts
	flooded  counts
}

// tallies are the epoch's so far.
func (e *epoch) tallies() map[string]tally {
	return map[string]tally{"udp": e.udp.read(), "tcp": e.tcp.read(), "flood": e.flooded.read()}
}

// counts are a tally that grows.
type counts struct {
	mu sync.Mutex // guards t
	t  tally
}

func (c *counts) count(took time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.t.Answered++
		c.t.Slowest = max(c.t.Slowest, took.Seconds())
	case errors.Is(err, errWrong):
		c.t.Wrong++
	default:
		c.t.Lost++
	}
	if err != nil && len(c.t.Failures) < mostFailures {
		c.t.Failures = append(c.t.Failures, time.Now().UTC().Format("15:04:05.000 ")+err.Error()) //nolint:forbidigo // when it was
	}
}

// read is what was counted so far.
func (c *counts) read() tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}
