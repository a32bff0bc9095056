// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/config"
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

// findProbe returns r's probe with this target, nil if there is none.
func (r *generation) findProbe(t probeTarget) *configuredProbe {
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
