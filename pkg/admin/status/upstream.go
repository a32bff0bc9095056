// SPDX-License-Identifier: Apache-2.0

package status

import (
	"time"

	"github.com/nodecache/node-cache/pkg/upstream"
)

// Upstream is one upstream of a route.
type Upstream struct {
	Zone string `json:"zone"`
	Server
}

// FallbackZone is the zone label of the fallback in status and metrics. No route's zone has this form.
const FallbackZone = "fallback"

// where returns the configuration key that names the upstream.
func (u *Upstream) where() string {
	if u.Zone == FallbackZone {
		return "intercept.fallback"
	}
	return Forward(u.Zone)
}

// Forward returns where the problems of a route are.
func Forward(zone string) string { return "forward " + zone }

// CentralKey is where the problems of the central resolver are.
const CentralKey = "cluster.central"

// Server is one upstream server as this agent sees it.
type Server struct {
	Address     string            `json:"address"`
	Name        string            `json:"name,omitempty"`       // name in its certificate; empty: its address
	State       string            `json:"state"`                // an upstream.State
	Cause       string            `json:"cause,omitempty"`      // an upstream.Cause: why it is not good; empty: it is, or it is looped
	Last        bool              `json:"lastResort,omitempty"` // asked only while no other server is usable
	Far         bool              `json:"far,omitempty"`        // in another topology zone
	Requests    uint64            `json:"requests"`
	Outstanding int               `json:"outstanding,omitempty"`
	Failures    map[string]uint64 `json:"failures,omitempty"`
	Latency     *float64          `json:"latencySeconds,omitempty"` // smoothed response time; nil: there was no answer
	Late        *Late             `json:"late,omitempty"`           // nil: no data yet
	Explored    uint64            `json:"explored,omitempty"`       // requests that only measured it
	Probes      uint64            `json:"probes,omitempty"`
	Open        *Open             `json:"open,omitempty"`        // nil: nothing was ever opened
	Limitations []string          `json:"limitations,omitempty"` // features that the server lacks
	LastError   string            `json:"lastError,omitempty"`   // why the latest connection ended without an answer
}

// Late describes hedging: a second server is asked when the first is slow.
type Late struct {
	After  *float64 `json:"afterSeconds,omitempty"` // the delay before a hedge; nil: there are too few answers
	Hedged uint64   `json:"hedged"`
	Won    uint64   `json:"won"`
}

// Open counts the sockets and connections to a server.
type Open struct {
	Sockets     int    `json:"sockets"` // UDP sockets
	Connections int    `json:"connections"`
	Opened      uint64 `json:"opened"`
	Resumed     uint64 `json:"resumed"` // TLS resumptions among Opened
}

// ServersOf describes the servers of a pool.
func ServersOf(stats upstream.Stats) []Server {
	list := make([]Server, 0, len(stats.Servers))
	for i := range stats.Servers {
		list = append(list, serverOf(&stats.Servers[i]))
	}
	return list
}

func serverOf(server *upstream.ServerStats) Server {
	s := Server{
		Address: server.Network + "://" + server.Addr.String(), Name: server.Name, State: server.State().String(),
		Last: server.LastResort, Far: server.Far,
		Requests: server.Requests, Outstanding: server.Outstanding, Latency: roundTrip(server.SRTT),
		Explored: server.Explored, Probes: server.Probes, Limitations: server.Limitations, LastError: server.LastError,
	}
	if server.P95 > 0 || server.Hedged > 0 || server.Won > 0 {
		s.Late = &Late{After: roundTrip(server.P95), Hedged: server.Hedged, Won: server.Won}
	}
	if server.Sockets > 0 || server.Open > 0 || server.Opened > 0 {
		s.Open = &Open{Sockets: server.Sockets, Connections: server.Open, Opened: server.Opened, Resumed: server.Resumed}
	}
	if state := server.State(); state != upstream.StateGood && state != upstream.StateLooped {
		s.Cause = server.Cause.String()
	}
	s.Failures = counted[upstream.Cause](server.Failures[:])
	return s
}

// roundTrip returns the seconds of a round-trip time, nil for 0.
func roundTrip(d time.Duration) *float64 {
	if d <= 0 {
		return nil
	}
	return Seconds(d)
}

// Seconds rounds d for JSON: to a tenth of a second, and below one second to 10 µs.
func Seconds(d time.Duration) *float64 {
	unit := 100 * time.Millisecond
	if d < time.Second {
		unit = 10 * time.Microsecond
	}
	return new(d.Round(unit).Seconds())
}
