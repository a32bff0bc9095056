// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/kubetest"
)

const (
	startTimeout = 2 * time.Minute
	readyPoll    = 5 * time.Millisecond // how often a server is asked whether it is ready
	tracePoll    = time.Millisecond     // how often the proxy's count is read
	settleTime   = 5 * time.Second      // from ready until memory counts as being at rest
	// Bytes from the API server above which it has begun to send objects: more than a TLS handshake.
	firstObjects = 8 << 10
)

// A startResult is one start of a server.
type startResult struct {
	first, last, ready time.Duration // since its start: the first and the last byte of the objects, and ready
	traffic            kubetest.Traffic
	peak, rest, loaded float64 // MiB: at most until ready, some seconds later, and after the loads
}

// trial starts one server, measures it, and stops it. What goes wrong with one server is a note: the others are still
// measured.
func (b *bench) trial(ctx context.Context, round int, c contender) {
	row := b.report.row(c)
	if err := b.measureOne(ctx, round, c, row); err != nil {
		row.note(round, err)
		printf(b.progress, "round %d %-18s %v\n", round+1, c.name, err)
	}
}

func (b *bench) measureOne(ctx context.Context, round int, c contender, row *result) error {
	proxy, err := kubetest.NewProxy(ctx, b.cluster.Address())
	if err != nil {
		return err
	}
	defer proxy.Close()
	at, err := b.newInstance(ctx, c, proxy)
	if err != nil {
		return err
	}
	p, err := start(ctx, serverCPU, at.dir, c.argv(b, at))
	if err != nil {
		return err
	}
	defer p.stop()
	l, err := b.awaitReady(ctx, p, c, at, proxy)
	if err != nil {
		return err
	}
	if err := b.runLoads(ctx, round, p, row, at.port); err != nil {
		return err
	}
	m, err := memoryOf(p.pid())
	if err != nil {
		return err
	}
	l.loaded = m.now
	row.starts = append(row.starts, l)
	printf(b.progress, "round %d %-18s first byte %s, last %s, ready %s, %d KiB; peak %.0f MiB, at rest %.0f, after loads %.0f\n", round+1, c.name,
		l.first.Round(time.Millisecond), l.last.Round(time.Millisecond), l.ready.Round(time.Millisecond), l.traffic.ToClient>>10, l.peak, l.rest, l.loaded)
	if round == 0 && b.opts.events > 0 {
		return b.measureEvents(ctx, row, at.port)
	}
	return nil
}

// runLoads runs every load.
func (b *bench) runLoads(ctx context.Context, round int, p *process, row *result, port int) error {
	for _, l := range loads() {
		s, err := b.runLoad(ctx, p, l, port)
		if err := errors.Join(ctx.Err(), p.ended()); err != nil {
			return fmt.Errorf("load %s: %w", l.name, err)
		}
		if err != nil {
			row.note(round, fmt.Errorf("load %s: %w", l.name, err))
			printf(b.progress, "round %d %-18s %v\n", round+1, row.name, err)
			continue
		}
		row.loads[l.name] = append(row.loads[l.name], s)
		printf(b.progress, "round %d %-18s %-12s %8.0f q/s %7.2f us CPU/query  core %3.0f %%  lost %d  wrong %d\n",
			round+1, row.name, l.name, s.qps, s.cpu, 100*s.busy, s.lost, s.wrong)
	}
	return nil
}

// awaitReady waits until the server says that it is ready and knows the zone, and some time more for its memory to
// settle.
func (b *bench) awaitReady(ctx context.Context, p *process, c contender, at instance, proxy *kubetest.Proxy) (startResult, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	trace := follow(p.started, proxy)
	err := b.untilReady(ctx, p, c, at)
	ready := time.Since(p.started)
	first, last := trace.stop()
	if err != nil {
		return startResult{}, err
	}
	l := startResult{first: first, last: last, ready: ready, traffic: proxy.Traffic()}
	m, err := memoryOf(p.pid())
	if err != nil {
		return startResult{}, err
	}
	l.peak = m.peak
	if err := pause(ctx, settleTime); err != nil {
		return startResult{}, err
	}
	m, err = memoryOf(p.pid())
	l.peak, l.rest = max(l.peak, m.peak), m.now
	return l, err
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("waiting: %w", ctx.Err())
	case <-time.After(d):
		return nil
	}
}

// untilReady polls.
func (b *bench) untilReady(ctx context.Context, p *process, c contender, at instance) error {
	url := "http://" + loopback + ":" + strconv.Itoa(at.admin) + c.ready
	ticker := time.NewTicker(readyPoll)
	defer ticker.Stop()
	for {
		why := says200(ctx, url)
		if why == nil {
			why = b.servesZone(ctx, at.port)
		}
		if why == nil {
			return nil
		}
		select {
		case <-p.done:
			return p.ended()
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w: %s", why, p.lastOutputLine())
		case <-ticker.C:
		}
	}
}

func says200(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	_ = r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("answers %d", r.StatusCode)
	}
	return nil
}

// servesZone asks for a headless set, and for a name that is denied only by who knows that everything is known.
func (b *bench) servesZone(ctx context.Context, port int) error {
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

// A trace notes when a proxy carried the first and the last bytes of what its client asked for.
type trace struct {
	end         chan struct{}
	ended       chan struct{}
	first, last atomic.Int64 // since the client's start
}

// follow begins a trace, which ends with stop.
func follow(started time.Time, proxy *kubetest.Proxy) *trace {
	t := &trace{end: make(chan struct{}), ended: make(chan struct{})}
	go func() { // joined by stop
		defer close(t.ended)
		ticker := time.NewTicker(tracePoll)
		defer ticker.Stop()
		var seen int64
		for {
			select {
			case <-t.end:
				return
			case <-ticker.C:
			}
			now := proxy.Traffic().ToClient
			if now == seen {
				continue
			}
			seen = now
			t.last.Store(int64(time.Since(started)))
			if now >= firstObjects {
				t.first.CompareAndSwap(0, t.last.Load())
			}
		}
	}()
	return t
}

func (t *trace) stop() (first, last time.Duration) {
	close(t.end)
	<-t.ended
	return time.Duration(t.first.Load()), time.Duration(t.last.Load())
}

// buildFloor compiles the floor.
func (b *bench) buildFloor(ctx context.Context) (string, error) {
	path := filepath.Join(b.dir, "floor")
	build := command(ctx, []string{"cc", "-O2", "-o", path, b.opts.floor})
	if text, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the floor: %w: %s", err, lastLine(string(text)))
	}
	return path, nil
}

// measureFloor shoots the floor with the first load.
func (b *bench) measureFloor(ctx context.Context, path string) error {
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	p, err := start(ctx, serverCPU, b.dir, []string{path, loopback, strconv.Itoa(port)})
	if err != nil {
		return err
	}
	defer p.stop()
	if err := pause(ctx, 200*time.Millisecond); err != nil { // until it listens
		return err
	}
	s, err := b.runLoad(ctx, p, loads()[0], port)
	if err := errors.Join(err, ctx.Err(), p.ended()); err != nil {
		return fmt.Errorf("measuring the floor: %w", err)
	}
	b.report.floor = append(b.report.floor, s)
	printf(b.progress, "floor %.0f q/s %.2f us CPU/query\n", s.qps, s.cpu)
	return nil
}
