// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strconv"
)

// checkRules reports keys that are right by themselves and contradict each other.
func checkRules(c *Config, role Role, r *report) {
	checkOrder(r, "cache.minTTL", "cache.maxTTL", c.Cache.MinTTL, c.Cache.MaxTTL, formatDuration)
	checkOrder(r, "limits.inflight", "limits.waiting", c.Limits.Inflight, c.Limits.Waiting, strconv.Itoa)
	checkOrder(r, "limits.tcpPerClient", "limits.tcpSessions", c.Limits.TCPPerClient, c.Limits.TCPSessions, strconv.Itoa)
	checkOrder(r, "snapshot.period", "snapshot.maxAge", c.Snapshot.Period, c.Snapshot.MaxAge, formatDuration)
	checkServeStale(c, r)
	checkAdmin(c, r)
	checkSockets(c, r)
	checkCluster(&c.Cluster, r)
	if role == Resolver {
		checkResolver(&c.Cluster, r)
		checkNoNode(c, r)
	} else {
		checkCentral(&c.Cluster, r)
		checkNode(c, r)
	}
	checkClusterRoute(c, role, r)
}

// checkOrder reports a key that must not be larger than another.
func checkOrder[T int | ~int64](r *report, small, large string, a, b T, spell func(T) string) {
	if a > b && r.clean(small, large) {
		r.add(Problem{
			Path: small, What: fmt.Sprintf("%s: more than %s, which is %s", spell(a), large, spell(b)),
			Hint: "set both, one of them may be at its default",
		})
	}
}

// checkServeStale reports a stale answer that would come after the query has been given up.
func checkServeStale(c *Config, r *report) {
	s := c.Cache.ServeStale
	if s.For == 0 || s.After < c.Limits.Deadline || !r.clean("cache.serveStale.for", "cache.serveStale.after", "limits.deadline") {
		return
	}
	r.add(Problem{
		Path: "cache.serveStale.after",
		What: fmt.Sprintf("%s: not below limits.deadline, which is %s", formatDuration(s.After), formatDuration(c.Limits.Deadline)),
		Hint: "set both, one of them may be at its default, or write for: 0s to give no stale answers",
	})
}

// checkAdmin reports an admin address that the DNS sockets take.
func checkAdmin(c *Config, r *report) {
	admin := c.Admin.Address
	if !admin.IsValid() || admin.Port() != c.Listen.Port || !r.clean("listen", "admin") {
		return
	}
	for _, a := range c.Listen.Addresses {
		if covers(a, admin.Addr()) || covers(admin.Addr(), a) {
			r.add(Problem{
				Path: "admin.address", What: quote(admin.String()) + ": taken by listen",
				Hint: "choose another port",
			})
			return
		}
	}
}

// checkSockets reports one path for two sockets.
func checkSockets(c *Config, r *report) {
	if c.Handover.Socket != "" && c.Handover.Socket == c.Admin.Socket && r.clean("handover.socket", "admin.socket") {
		r.add(Problem{Path: "handover.socket", What: quote(c.Handover.Socket) + ": the path of admin.socket", Hint: "choose another path"})
	}
}
