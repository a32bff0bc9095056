// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"time"

	"github.com/nodecache/node-cache/pkg/upstream"
)

// ServerStatus is one server as seen from here.
type ServerStatus struct {
	Address     string            `json:"address"`
	Name        string            `json:"name,omitempty"`       // that its certificate must be for; empty: its address
	State       string            `json:"state"`                // an upstream.State in its word
	Last        bool              `json:"lastResort,omitempty"` // asked only while none of the others is any good
	Far         bool              `json:"far,omitempty"`        // in another topology zone
	Requests    uint64            `json:"requests"`
	Outstanding int               `json:"outstanding,omitempty"`
	Failures    map[string]uint64 `json:"failures,omitempty"`
	Latency     string            `json:"latency"`        // smoothed; "unknown" before the first answer
	Late        *LateStatus       `json:"late,omitempty"` // nil: nothing is known of it
	Probes      uint64            `json:"probes,omitempty"`
	Open        *OpenStatus       `json:"open,omitempty"`      // nil: nothing ever was
	Manners     []string          `json:"manners,omitempty"`   // what it cannot do, as far as it has shown
	LastError   string            `json:"lastError,omitempty"` // why the latest connection ended before an answer came on it
}

// LateStatus is what was done when a server was late.
type LateStatus struct {
	After  string `json:"after"` // which time counts as late; "unknown" before there were answers enough
	Hedged uint64 `json:"hedged"`
	Won    uint64 `json:"won"`
}

// OpenStatus is what is open to a server.
type OpenStatus struct {
	Sockets     int    `json:"sockets"` // of UDP
	Connections int    `json:"connections"`
	Opened      uint64 `json:"opened"`
	Resumed     uint64 `json:"resumed"` // of those opened, sessions of TLS
}

func serverStatuses(pool *upstream.Pool) []ServerStatus {
	stats := pool.Stats()
	list := make([]ServerStatus, 0, len(stats.Servers))
	for i := range stats.Servers {
		list = append(list, serverStatus(&stats.Servers[i]))
	}
	return list
}

func serverStatus(server *upstream.ServerStats) ServerStatus {
	s := ServerStatus{
		Address: server.Network + "://" + server.Addr.String(), Name: server.Name, State: server.State().String(),
		Last: server.LastResort, Far: server.Far,
		Requests: server.Requests, Outstanding: server.Outstanding, Latency: roundTrip(server.SRTT),
		Probes: server.Probes, Manners: server.Limitations, LastError: server.LastError,
	}
	if server.P95 > 0 || server.Hedged > 0 || server.Won > 0 {
		s.Late = &LateStatus{After: roundTrip(server.P95), Hedged: server.Hedged, Won: server.Won}
	}
	if server.Sockets > 0 || server.Open > 0 || server.Opened > 0 {
		s.Open = &OpenStatus{Sockets: server.Sockets, Connections: server.Open, Opened: server.Opened, Resumed: server.Resumed}
	}
	for cause, n := range server.Failures {
		if n == 0 {
			continue
		}
		if s.Failures == nil {
			s.Failures = map[string]uint64{}
		}
		s.Failures[upstream.Cause(cause).String()] = n
	}
	return s
}

// roundTrip spells a time of answers, 0 for one that is not known.
func roundTrip(d time.Duration) string {
	if d <= 0 {
		return "unknown"
	}
	return d.Round(10 * time.Microsecond).String()
}

// serverProblems says which servers are of no use now, and why. One that is failing may have been unlucky; it is named
// when no connection can be had to it.
func serverProblems(where string, servers []ServerStatus) (list []Problem) {
	for i := range servers {
		s := &servers[i]
		switch {
		case s.State == "looped":
			list = append(list, Problem{
				Where: where, What: fmt.Sprintf("%s is left out: what is sent to it comes back here", s.Address),
				Hint: "see whom it forwards to; it is tried again by itself",
			})
		case s.State != "good" && s.LastError != "":
			list = append(list, Problem{
				Where: where, What: fmt.Sprintf("%s is %s: %s", s.Address, s.State, s.LastError),
				Hint: "see that it can be reached from here, and that its certificate is for the configured name; it is tried again by itself",
			})
		case s.State == "down":
			list = append(list, Problem{
				Where: where, What: fmt.Sprintf("%s is down: its latest answers did not come", s.Address),
				Hint: "see that it runs and can be reached from here; it is tried again by itself",
			})
		}
	}
	return list
}
