// SPDX-License-Identifier: Apache-2.0

package push

import (
	"bytes"
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// Reconfigured is called after Permits, Owner and Zones have changed; before are the zones until then, nil if all answers may
// have changed. It pushes the names that have other answers now. It ends the sessions of clients that may no longer subscribe, and those
// with a name that other sources answer now: no message of RFC 8765 ends a subscription of a client. The other sessions stay, since a
// reconnect of all clients costs more than most changes.
//
// A client that subscribes meanwhile is there before the names are listed, or is compared with the new configuration.
func (s *Server) Reconfigured(ctx context.Context, before zone.Zones) {
	s.end(func(c *Session) bool { return !s.cfg.Permits(c.client) })
	s.mu.Lock()
	names := slices.Collect(maps.Values(s.index.names))
	s.mu.Unlock()

	var changed []*name
	moved := map[*name]bool{}
	err := s.guard.Do(ctx, func() error {
		c := comparer{before: before, after: s.cfg.Zones(), now: s.cfg.Now()}
		for _, n := range names {
			switch {
			case string(s.cfg.Owner([]byte(n.wire))) != n.owner.key:
				moved[n] = true
			case before == nil || !c.same(n):
				changed = append(changed, n)
			}
		}
		return nil
	})
	if err != nil {
		s.EndAll()
		return
	}
	if len(moved) > 0 {
		s.end(func(c *Session) bool {
			for _, sub := range c.subscriptions {
				if moved[sub.name] {
					return true
				}
			}
			return false
		})
	}
	s.mu.Lock()
	for _, n := range changed {
		s.markLocked(n)
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// A comparer compares the answers of two configurations.
type comparer struct {
	before, after zone.Zones
	now           time.Time
	packet        []byte
	query         wire.Query
	old, new      []byte
	message       wire.Message
}

// same reports whether a name has the same answers in both. It does not if it is an alias: what that leads to may be answered elsewhere.
func (c *comparer) same(n *name) bool {
	for _, rrtype := range typesAt(n.wire) {
		c.packet = append(append(c.packet[:0], 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0), n.wire...)
		c.packet = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(c.packet, rrtype), wire.ClassIN)
		if c.query.Parse(c.packet) != wire.RcodeSuccess {
			return false
		}
		var was, is zone.Result
		c.old, was = c.before.Answer(&c.query, zone.Client{MaxSize: dso.MaxPush}, c.now, c.old[:0])
		c.new, is = c.after.Answer(&c.query, zone.Client{MaxSize: dso.MaxPush}, c.now, c.new[:0])
		if was.Verdict != is.Verdict || !bytes.Equal(c.old, c.new) || c.isAlias() {
			return false
		}
	}
	return true
}

func (c *comparer) isAlias() bool {
	return c.message.Parse(c.new) != nil || slices.ContainsFunc(c.message.Records, func(r wire.Record) bool { return r.Type == wire.TypeCNAME })
}
