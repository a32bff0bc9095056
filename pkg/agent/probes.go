// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/metrics"
	"github.com/nodecache/node-cache/pkg/probe"
)

// A probing is a configured probe and what asks it. It outlives a reload that leaves it
// as it is, with what it has counted.
type probing struct {
	probeTarget
	*probe.Prober

	after <-chan struct{} // closed once it may begin
	until <-chan struct{} // closed once it is to end
}

// A probeTarget is all that a prober is made from.
type probeTarget struct {
	config.Probe
	network string
	addr    netip.AddrPort
	mark    uint32 // of the packets; 0: none
}

// Run asks while the agent serves, since it may be the one that is asked.
func (p *probing) Run(ctx context.Context) error {
	select {
	case <-p.after:
	case <-ctx.Done():
		return nil
	}
	serving, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-p.until:
			stop()
		case <-serving.Done():
		}
	}()
	return p.Prober.Run(serving)
}

// probesFor makes the probers of cfg, taking over from old those that stay.
func (a *Agent) probesFor(cfg *config.Config, old *running) (list []*probing, err error) {
	for i, configured := range cfg.Probes {
		target, err := targetOf(configured, cfg)
		if err != nil {
			return nil, fmt.Errorf("probes[%d]: %w", i, err)
		}
		p := old.probing(target)
		if p == nil {
			if p, err = a.newProbing(target); err != nil {
				return nil, fmt.Errorf("probes[%d]: %w", i, err)
			}
		}
		list = append(list, p)
	}
	return list, nil
}

// targetOf says whom a probe asks, and how. A server that is named is asked itself,
// whatever the rules of this agent do with queries to its address. The agent is asked
// as its clients ask it, by way of the rules.
func targetOf(p config.Probe, cfg *config.Config) (probeTarget, error) {
	t := probeTarget{Probe: p, network: "udp"}
	if p.Server == "" {
		t.addr = netip.AddrPortFrom(reachable(cfg.Listen.Addresses[0]), cfg.Listen.Port)
		return t, nil
	}
	server, isTCP := strings.CutPrefix(p.Server, "tcp://")
	if isTCP {
		t.network = "tcp"
	}
	t.mark = mark(cfg)
	var err error
	t.addr, err = netip.ParseAddrPort(server)
	return t, err
}

// reachable is an address at which this machine reaches a listener at addr.
func reachable(addr netip.Addr) netip.Addr {
	switch addr {
	case netip.IPv4Unspecified():
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case netip.IPv6Unspecified():
		return netip.IPv6Loopback()
	}
	return addr
}

// probing is the one of r with this target, nil if there is none. r may be nil.
func (r *running) probing(t probeTarget) *probing {
	if r == nil {
		return nil
	}
	for _, p := range r.probes {
		if p.probeTarget == t {
			return p
		}
	}
	return nil
}

func (a *Agent) newProbing(t probeTarget) (*probing, error) {
	prober, err := probe.New(probe.Config{
		Label: t.Label, Network: t.network, Server: t.addr, Name: t.Name, Type: t.Type,
		Interval: t.Interval, Timeout: t.Timeout, Mark: t.mark, Now: time.Now, Log: a.log,
	})
	if err != nil {
		return nil, err
	}
	return &probing{probeTarget: t, Prober: prober, after: a.ready, until: a.stopped}, nil
}

// checks are the probes for /healthcheck/.
func (a *Agent) checks() []admin.Check {
	probes := a.running.Load().probes
	list := make([]admin.Check, 0, len(probes))
	for _, p := range probes {
		list = append(list, admin.Check{Label: p.Label, Err: p.Result()})
	}
	return list
}

// probeStats are for the metrics.
func (a *Agent) probeStats() []metrics.Probe {
	probes := a.running.Load().probes
	list := make([]metrics.Probe, 0, len(probes))
	for _, p := range probes {
		list = append(list, metrics.Probe{Label: p.Label, Stats: p.Stats()})
	}
	return list
}

// ProbeStatus is one configured probe.
type ProbeStatus struct {
	Label     string            `json:"label"`
	Server    string            `json:"server"`
	Question  string            `json:"question"`
	State     string            `json:"state"`              // "good", "bad", or "unknown" before the first question is over
	Latency   string            `json:"latency"`            // of the latest good answer; "unknown" before the first
	Failures  map[string]uint64 `json:"failures,omitempty"` // a probe.Reason in its word
	Row       uint64            `json:"inARow,omitempty"`   // questions without a good answer since the latest good one
	LastError string            `json:"lastError,omitempty"`
}

// probeStatuses are for /status.
func probeStatuses(probes []*probing) (list []ProbeStatus) {
	for _, p := range probes {
		st := p.Stats()
		s := ProbeStatus{
			Label: p.Label, Server: p.network + "://" + p.addr.String(), Question: p.Name + " " + dns.Type(p.Type).String(),
			State: "unknown", Latency: roundTrip(st.Last), Row: st.Row, LastError: st.LastError,
		}
		if st.Known {
			s.State = map[bool]string{true: "good", false: "bad"}[st.Up]
		}
		for reason, n := range st.Failures {
			if n == 0 {
				continue
			}
			if s.Failures == nil {
				s.Failures = map[string]uint64{}
			}
			s.Failures[probe.Reason(reason).String()] = n
		}
		list = append(list, s)
	}
	return list
}

// probeProblems says which probes go wrong. A single packet may be lost: that is none.
func probeProblems(probes []ProbeStatus) (list []Problem) {
	for i := range probes {
		if p := &probes[i]; p.Row > 1 {
			list = append(list, Problem{
				Where: "probe " + p.Label, What: fmt.Sprintf("%s for %s from %s, %d times in a row", p.LastError, p.Question, p.Server, p.Row),
				Hint: "see how that server is doing; it is asked again by itself",
			})
		}
	}
	return list
}
