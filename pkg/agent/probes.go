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

// A configuredProbe is a probe of the configuration and its prober. It survives a reload that does not change
// it, with its counters.
type configuredProbe struct {
	probeTarget
	*probe.Prober

	after <-chan struct{} // closed once it may start
	until <-chan struct{} // closed once it must end
}

// A probeTarget holds all settings of a prober.
type probeTarget struct {
	config.Probe
	network string
	addr    netip.AddrPort
	mark    uint32 // of the packets; 0: none
}

// Run probes while the agent serves, since the agent itself may be the target.
func (p *configuredProbe) Run(ctx context.Context) error {
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

// probesFor makes the probes of cfg and reuses unchanged ones of old.
func (a *Agent) probesFor(cfg *config.Config, old *generation) (list []*configuredProbe, err error) {
	for i, configured := range cfg.Probes {
		target, err := targetOf(configured, cfg)
		if err != nil {
			return nil, fmt.Errorf("probes[%d]: %w", i, err)
		}
		p := old.findProbe(target)
		if p == nil {
			if p, err = a.newProbe(target); err != nil {
				return nil, fmt.Errorf("probes[%d]: %w", i, err)
			}
		}
		list = append(list, p)
	}
	return list, nil
}

// targetOf returns the target of a probe. A configured server is asked directly, past this agent's rules.
// Without one the probe asks the agent through the rules, as clients do.
func targetOf(p config.Probe, cfg *config.Config) (probeTarget, error) {
	t := probeTarget{Probe: p, network: "udp"}
	if p.Server == "" {
		t.addr = netip.AddrPortFrom(reachableAddr(cfg.Listen.Addresses[0]), cfg.Listen.Port)
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

// reachableAddr returns an address at which this host reaches a listener at addr.
func reachableAddr(addr netip.Addr) netip.Addr {
	switch addr {
	case netip.IPv4Unspecified():
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case netip.IPv6Unspecified():
		return netip.IPv6Loopback()
	}
	return addr
}

// findProbe returns r's probe with this target, nil if there is none. r may be nil.
func (r *generation) findProbe(t probeTarget) *configuredProbe {
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

func (a *Agent) newProbe(t probeTarget) (*configuredProbe, error) {
	prober, err := probe.New(probe.Config{
		Label: t.Label, Network: t.network, Server: t.addr, Name: t.Name, Type: t.Type,
		Interval: t.Interval, Timeout: t.Timeout, Mark: t.mark, Now: time.Now, Log: a.log,
	})
	if err != nil {
		return nil, err
	}
	return &configuredProbe{probeTarget: t, Prober: prober, after: a.ready, until: a.stopped}, nil
}

// checks returns the probes for /healthcheck/.
func (a *Agent) checks() []admin.Check {
	probes := a.running.Load().probes
	list := make([]admin.Check, 0, len(probes))
	for _, p := range probes {
		list = append(list, admin.Check{Label: p.Label, Err: p.Result()})
	}
	return list
}

// probeStats returns the metrics of the probes.
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
	State     string            `json:"state"`              // "good", "bad", or "unknown" before the first result
	Latency   string            `json:"latency"`            // of the latest good answer; "unknown" before the first
	Failures  map[string]uint64 `json:"failures,omitempty"` // by probe.Reason
	Row       uint64            `json:"inARow,omitempty"`   // failures since the latest good answer
	LastError string            `json:"lastError,omitempty"`
}

// probeStatuses returns the probes for /status.
func probeStatuses(probes []*configuredProbe) (list []ProbeStatus) {
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

// probeProblems reports the failing probes. A single failure may be a lost packet, so it is not reported.
func probeProblems(probes []ProbeStatus) (list []Problem) {
	for i := range probes {
		if p := &probes[i]; p.Row > 1 {
			list = append(list, Problem{
				Where: "probe " + p.Label, What: fmt.Sprintf("%s for %s from %s, %d times in a row", p.LastError, p.Question, p.Server, p.Row),
				Hint: "check that server; the probe continues by itself",
			})
		}
	}
	return list
}
