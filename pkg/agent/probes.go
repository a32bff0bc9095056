// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/healthcheck"
	"github.com/nodecache/node-cache/pkg/listen"
)

// A configuredProbe is a probe of the configuration and its prober. It survives a reload that does not change
// it, with its counters.
type configuredProbe struct {
	config.Probe
	*healthcheck.Prober

	after <-chan struct{} // closed once the probe may start
	until <-chan struct{} // closed once the probe must end
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

// newProbes makes the probes of cfg and reuses unchanged ones of old.
func (b *builder) newProbes(cfg *config.Config, old []*configuredProbe) (list []*configuredProbe, err error) {
	for i, configured := range cfg.Probes {
		same := slices.IndexFunc(old, func(p *configuredProbe) bool { return p.Probe == configured })
		if same >= 0 {
			list = append(list, old[same])
			continue
		}
		p, err := b.newProbe(configured, cfg)
		if err != nil {
			return nil, fmt.Errorf("probes[%d]: %w", i, err)
		}
		list = append(list, p)
	}
	return list, nil
}

// newProbe makes a probe. A configured server is asked directly, past this agent's rules. Without one the probe
// asks the agent through the rules, as clients do.
func (b *builder) newProbe(p config.Probe, cfg *config.Config) (made *configuredProbe, err error) {
	c := healthcheck.Config{
		Label: p.Label, Network: "udp", Name: p.Name, Type: p.Type, Interval: p.Interval, Timeout: p.Timeout, Now: time.Now, Log: b.log,
		Server: netip.AddrPortFrom(listen.Reachable(cfg.Listen.Addresses[0]), cfg.Listen.Port),
	}
	if p.Server != "" {
		server, isTCP := strings.CutPrefix(p.Server, "tcp://")
		if isTCP {
			c.Network = "tcp"
		}
		c.Mark = mark(cfg)
		if c.Server, err = netip.ParseAddrPort(server); err != nil {
			return nil, err
		}
	}
	made = &configuredProbe{Probe: p, after: b.ready, until: b.stopped}
	made.Prober, err = healthcheck.New(c)
	return made, err
}
