// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"cmp"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Which connection gets a query, and which one must not after a timeout.

// avoided says which connections a query must not be assigned to: the one numbered number, and those numbered up to newest
// on which nothing has come after since.
type avoided struct {
	number, newest uint64
	since          time.Time
}

func (v *avoided) includes(c *conn) bool {
	return c.number == v.number || c.number <= v.newest && !c.heardAt.After(v.since)
}

// afterTimeoutLocked returns which connections to avoid after an attempt timed out: its own; and if nothing has come on
// it since, all that may have broken with it, for example because a firewall lost its state. previous may be nil.
func (p *connPool) afterTimeoutLocked(previous *attempt) avoided {
	if previous == nil {
		return avoided{}
	}
	v := avoided{number: previous.lastConn, since: previous.assignedAt}
	if !slices.ContainsFunc(p.conns, func(c *conn) bool { return c.number == v.number && c.heardAt.After(v.since) }) {
		v.newest = previous.newestConn
	}
	return v
}

// timedOut records that the attempt has timed out. If nothing has come on its connection since, the connection is used
// only if there is no other, and connections on which something has come are preferred. onOld reports whether the
// connection was open before the query.
func (p *connPool) timedOut(a *attempt) (onOld bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := a.conn
	if c == nil || c.heardAt.After(a.assignedAt) {
		return c != nil && a.reused
	}
	c.suspect = true
	for _, other := range p.conns {
		other.unproven = other.unproven || other.open && !other.heardAt.After(a.assignedAt)
	}
	return a.reused
}

// pickLocked returns the best connection with room for a query of size bytes, nil if there is none. Within the best
// rank it prefers fewer queries, then one that is not unproven, then the one unused for longest, so that no connection
// is idle while others work. The first maxBatchPerConn queries of a batch stay together, to share a write.
func (p *connPool) pickLocked(now time.Time, avoid *avoided, size int, batch *wire.SendBatch) (best *conn) {
	bestRank, finished := rankGood, (*conn)(nil)
	for _, c := range p.conns {
		switch {
		case c.open && len(c.queries) == 0 && c.link.blocked(): // the peer accepts no more queries
			finished = c
			continue
		case avoid.includes(c) || c.link.fullLocked(size):
			continue
		}
		rank := c.rankLocked(now)
		if rank == rankGood && c.batch == batch && c.batchCount < maxBatchPerConn {
			return c
		}
		if best == nil || cmp.Or(rank-bestRank, len(c.queries)-len(best.queries), compareBool(c.unproven, best.unproven),
			cmp.Compare(c.lastUse, best.lastUse)) < 0 {
			best, bestRank = c, rank
		}
	}
	if finished != nil {
		finished.failLocked(errAged)
	}
	return best
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// The ranks of connections for a query, best first.
const (
	rankGood      = iota
	rankAged      // to be replaced: use only if no connection of rankGood has room
	rankPreopened // opening, and no query has waited for it yet
	rankStalled   // use only if there is no other
)

// rankLocked returns the rank of the connection for a query.
func (c *conn) rankLocked(now time.Time) int {
	switch {
	case c.stalledLocked(now):
		return rankStalled
	case c.preopened && !c.open:
		return rankPreopened
	case c.aged:
		return rankAged
	}
	return rankGood
}

// stalledLocked reports whether a query on the connection would probably wait: it is suspect, it has been silent for
// stallAfter with a query pending, or the peer accepts no more queries now.
func (c *conn) stalledLocked(now time.Time) bool {
	return c.suspect || c.silentLocked(now, stallAfter) || c.open && c.link.blocked()
}
