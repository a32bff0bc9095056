// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"net/netip"
	"sync/atomic"
	"time"
)

// A Cause says why a lease was not renewed in a round.
type Cause uint8

// The causes, a closed set.
const (
	NoProof   Cause = iota // the probe failed in a way that is none of the others
	Silent                 // the agent did not answer in time
	Refused                // nobody listens there
	Wrong                  // somebody answered, but not this agent or not this query
	Unsent                 // the probe could not be sent: no address, no right to mark it
	Wedged                 // the probe went well, but a reader of the agent's hangs
	Late                   // the proof was too old when it was there
	Kernel                 // the backend did not renew
	NumCauses = int(iota)
)

// String is the cause in lower-case words, joined by a hyphen.
func (c Cause) String() string {
	names := [NumCauses]string{"no-proof", "silent", "refused", "wrong", "unsent", "wedged", "late", "kernel"}
	if int(c) >= len(names) {
		return "unknown"
	}
	return names[c]
}

// Stats is what a Keeper knows and has counted since it was made.
type Stats struct {
	Backend string // what it calls itself

	Held      map[netip.Addr]bool   // each lease by its key: renewed, and not run out since; not while it is ahead of the rules
	Problems  map[netip.Addr]string // why the last round of a lease did not renew it; no entry: it did, or there was none
	SinceHeld time.Duration         // since all leases were held, or since New; 0 while they are

	Renewals        uint64            // rounds that renewed a lease; 0 while these are ahead of the rules
	RenewalFailures [NumCauses]uint64 // rounds that did not, by Cause

	Applies       uint64 // looks at the rules after which they were right
	Changes       uint64 // those of Applies that had to change them
	ApplyFailures uint64
	WatchFailures uint64 // times that the watch of the rules ended by itself
	LastError     string // of the last look at the rules; empty: they are right

	Fallback        []netip.AddrPort // that is used, or is to be; nil in transparent mode
	FallbackOmitted int              // endpoints told of that are not used: too many, or no endpoints

	Panics    uint64 // recovered, each also logged with its stack
	Released  bool   // the leases are given up for good
	StoodDown bool   // a newer agent has the rules, see NewOwner
	NewOwner  string // empty unless StoodDown

	// SinceAny is the time since any lease was held, or since New; 0 while one is.
	SinceAny time.Duration
}

type counters struct {
	renewals        atomic.Uint64
	renewalFailures [NumCauses]atomic.Uint64
	applies         atomic.Uint64
	changes         atomic.Uint64
	applyFailures   atomic.Uint64
	watchFailures   atomic.Uint64
	panics          atomic.Uint64
}

// Stats reads the counters. What it returns is the caller's.
func (k *Keeper) Stats() Stats {
	s := Stats{
		Backend:       k.cfg.Backend.String(),
		Held:          make(map[netip.Addr]bool, len(k.leases)),
		Problems:      map[netip.Addr]string{},
		Renewals:      k.count.renewals.Load(),
		Applies:       k.count.applies.Load(),
		Changes:       k.count.changes.Load(),
		ApplyFailures: k.count.applyFailures.Load(),
		WatchFailures: k.count.watchFailures.Load(),
		Panics:        k.count.panics.Load(),
		Released:      true,
	}
	for cause := range s.RenewalFailures {
		s.RenewalFailures[cause] = k.count.renewalFailures[cause].Load()
	}
	now := k.cfg.Now()
	ahead := k.ahead.Load()
	if ahead {
		s.Renewals = 0
	}
	for i, l := range k.leases {
		held, since, problem := l.look(now)
		if held && ahead {
			held, since = false, max(now.Sub(k.made), 1)
		}
		s.Held[l.Key] = held
		s.SinceHeld = max(s.SinceHeld, since)
		if i == 0 || since < s.SinceAny {
			s.SinceAny = since
		}
		s.Released = s.Released && l.gate.isClosed()
		if problem != "" {
			s.Problems[l.Key] = problem
		}
	}
	s.Fallback, s.FallbackOmitted = k.fallback.look()
	s.LastError, s.NewOwner = k.note.look()
	s.StoodDown = s.NewOwner != ""
	return s
}
