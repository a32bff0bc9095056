// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/retry"
)

const (
	startTimeout = 2 * time.Minute
	readyPoll    = 5 * time.Millisecond // how often a server is asked whether it is ready
	settleTime   = 5 * time.Second      // from ready until memory counts as being at rest
)

// A startResult is one start of a server.
type startResult struct {
	first, last, ready time.Duration // since its start: the first and the last byte of the objects, and ready
	traffic            kubetest.Traffic
	peak, rest, loaded float64 // MiB: at most until ready, some seconds later, and after the loads
}

// trial starts one server, measures it, and stops it.
func (b *clusterBench) trial(ctx context.Context, round int, c contender, row *clusterResult) error {
	proxy, err := kubetest.NewProxy(ctx, b.cluster.Address())
	if err != nil {
		return err
	}
	defer proxy.Close()
	p, at, err := b.startBehind(ctx, c, proxy)
	if err != nil {
		return err
	}
	defer p.Stop(grace)
	l, err := b.awaitReady(ctx, p, c, at, proxy)
	if err != nil {
		return err
	}
	if err := b.runLoads(ctx, round, p, row.result, at.Port); err != nil {
		return err
	}
	used, err := proctest.UsageOf(p.PID())
	if err != nil {
		return err
	}
	l.loaded = float64(used.RSS) / mib
	row.starts = append(row.starts, l)
	printf(b.progress, "round %d %-18s first byte %s, last %s, ready %s, %d KiB; peak %.0f MiB, at rest %.0f, after loads %.0f\n", round+1, c.name,
		l.first.Round(time.Millisecond), l.last.Round(time.Millisecond), l.ready.Round(time.Millisecond), l.traffic.ToClient>>10, l.peak, l.rest, l.loaded)
	if round == 0 && b.opts.events > 0 {
		return b.measureEvents(ctx, row, at.Port)
	}
	return nil
}

// startBehind starts a contender that reaches the API server through a proxy.
func (b *clusterBench) startBehind(ctx context.Context, c contender, proxy *kubetest.Proxy) (*proctest.Process, site, error) {
	if c.path = b.opts.nodeCache; !c.ours {
		c.path = b.cluster.Programs.CoreDNS
	}
	kubeconfig, err := b.cluster.KubeconfigAt(c.user, proxy.Addr())
	if err != nil {
		return nil, site{}, err
	}
	at, err := b.place(ctx, c.server, site{Kubeconfig: kubeconfig, Endpoints: c.endpoints})
	if err != nil {
		return nil, site{}, err
	}
	p, err := b.start(ctx, c.server, at)
	return p, at, err
}

// runLoads runs every load.
func (b *clusterBench) runLoads(ctx context.Context, round int, p *proctest.Process, row *result, port int) error {
	for _, l := range clusterLoads() {
		s, err := b.runLoad(ctx, p, l, port)
		if err := errors.Join(ctx.Err(), ended(p)); err != nil {
			return fmt.Errorf("load %s: %w", l.name, err)
		}
		if err != nil {
			b.note(row, round, l.name, err)
			continue
		}
		b.sample(row, round, l.name, s)
	}
	return nil
}

// awaitReady waits until the server says that it is ready and knows the zone, and some time more for its memory to
// settle.
func (b *clusterBench) awaitReady(ctx context.Context, p *proctest.Process, c contender, at site, proxy *kubetest.Proxy) (startResult, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	url := "http://" + loopback + ":" + strconv.Itoa(at.Admin) + c.ready
	err := p.Await(ctx, readyPoll, func(ctx context.Context) error {
		if err := proctest.Get(ctx, url); err != nil {
			return err
		}
		return b.servesZone(ctx, at.Port)
	})
	if err != nil {
		return startResult{}, err
	}
	first, last := proxy.Times()
	l := startResult{first: first.Sub(p.Started), last: last.Sub(p.Started), ready: time.Since(p.Started), traffic: proxy.Traffic()}
	early, err := proctest.UsageOf(p.PID())
	if err != nil {
		return startResult{}, err
	}
	if err := retry.Sleep(ctx, settleTime); err != nil {
		return startResult{}, err
	}
	used, err := proctest.UsageOf(p.PID())
	l.peak, l.rest = float64(max(early.Peak, used.Peak))/mib, float64(used.RSS)/mib
	return l, err
}

// servesZone asks for a headless set, and for a name that is denied only once everything has been received.
func (b *clusterBench) servesZone(ctx context.Context, port int) error {
	s := b.services(true)[0]
	for _, q := range []struct {
		name  string
		rcode int
	}{
		{s.Name + "." + s.Namespace, dns.RcodeSuccess},
		{"no-such-service." + s.Namespace, dns.RcodeNameError},
	} {
		client := &dns.Client{Timeout: time.Second}
		m := new(dns.Msg).SetQuestion(q.name+".svc."+domain+".", dns.TypeA)
		reply, _, err := client.ExchangeContext(ctx, m, loopback+":"+strconv.Itoa(port))
		if err != nil {
			return err
		}
		if reply.Rcode != q.rcode {
			return fmt.Errorf("%s answered with %s", q.name, dns.RcodeToString[reply.Rcode])
		}
	}
	return nil
}
