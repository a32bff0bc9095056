// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/names/push"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/server"
)

// newPush returns the server of subscriptions. It takes the zones, and who may subscribe, from the configuration in use.
func newPush(a *Agent) *push.Server {
	return push.New(push.Config{
		Permits: func(client netip.Addr) bool {
			return slices.ContainsFunc(a.running.Load().config.Push.Clients, func(p netip.Prefix) bool { return p.Contains(client) })
		},
		Owner:  func(name []byte) []byte { return a.resolver.ZoneOwner(name) },
		Zones:  func() zone.Zones { return a.resolver.Zones() },
		View:   func(now time.Time) dso.View { return a.running.Load().cluster.View(now) },
		Budget: func() int64 { return a.memory.Share().Push() },
		Now:    time.Now,
		Log:    a.log,
	})
}

// A statefulServer makes the sessions of the TCP servers those of the subscriptions.
type statefulServer struct{ *push.Server }

// NewStateful implements [server.Stateful].
func (s statefulServer) NewStateful(client netip.Addr, to server.StatefulConn) server.StatefulSession {
	if session := s.NewSession(client, to); session != nil {
		return session
	}
	return nil
}

// pushStats returns the stats of the subscriptions; nil: no client may subscribe.
func pushStats(s *push.Server, r *generation) *push.Stats {
	if len(r.config.Push.Clients) == 0 {
		return nil
	}
	return new(s.Stats())
}
