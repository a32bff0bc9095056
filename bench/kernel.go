// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/retry"
)

//go:embed floor/paced.c
var pacedSource string

// kernelAddr returns the address of the agent.
func kernelAddr() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 20, 10}) }

// The names of both zones of the upstream are the same 1,000 hosts. The TTLs of one are longer than a run; those of the other are
// 5 s to 30 s.
const (
	longZone     = "long.test"
	shortZone    = "short.test"
	shortestTTL  = 5
	longestTTL   = 30
	shareSeconds = longestTTL // of the load by which the share of hits is measured
)

// What is measured at the host end of a pod's link.
const (
	idle      = "idle machine"
	turned    = "floor"
	inProcess = "hits off"
	inKernel  = "hits on"
)

func kernelSubjects() []string { return []string{idle, turned, inProcess, inKernel} }

// A kernelBench is one run of the section kernel.
type kernelBench struct {
	*harness

	opts   options
	net    *nodetest.Network
	paced  string // path of the load generator
	report kernelReport
}

// measureKernel runs all rounds and returns what they found.
func measureKernel(ctx context.Context, opts options, progress io.Writer) (_ report, err error) {
	dir, err := os.MkdirTemp("", "dns-bench-")
	if err != nil {
		return nil, fmt.Errorf("creating a folder: %w", err)
	}
	b := &kernelBench{harness: &harness{dir: dir, progress: progress, seconds: opts.seconds}, opts: opts}
	defer b.close()
	b.report = kernelReport{Machine: describeMachine(), Seconds: opts.seconds, Rounds: opts.rounds, samples: map[string][]kernelSample{}, runTimes: map[string]time.Duration{}}
	if b.paced, err = b.compile(ctx, "paced", pacedSource, "-pthread"); err != nil {
		return nil, err
	}
	if b.net, err = nodetest.New(nodetest.Options{Pods: 1, NoIPv6: true}); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.net.Close()) }()
	if err := b.net.Node.AddAddress(kernelAddr()); err != nil {
		return nil, err
	}
	if err := b.startZones(ctx); err != nil {
		return nil, err
	}
	defer b.upstream.Stop(grace)
	if err := b.measure(ctx); err != nil {
		return nil, fmt.Errorf("measuring: %w", err)
	}
	return &b.report, nil
}

// startZones starts the upstream and writes the lists of queries.
func (b *kernelBench) startZones(ctx context.Context) error {
	random := rand.New(rand.NewPCG(1, 0))
	draw := newZipf(random, hosts)
	var sections strings.Builder
	for _, zone := range []string{longZone, shortZone} {
		err := errors.Join(
			writeList(b.dir, zone, 1+hosts, func(i int) string {
				ttl := 86400
				if zone == shortZone {
					ttl = shortestTTL + random.IntN(longestTTL-shortestTTL+1)
				}
				if i == 0 {
					return fmt.Sprintf("$ORIGIN %s.\n$TTL 300\n@ SOA ns h 1 3600 600 86400 300\n@ NS ns\nns A 127.0.0.1", zone)
				}
				return fmt.Sprintf("svc-%d %d A 10.0.%d.%d", i-1, ttl, (i-1)>>8, (i-1)&255)
			}),
			writeList(b.dir, zone+"-list", zipfLines, func(int) string { return fmt.Sprintf("svc-%d.%s A", draw.rank(), zone) }),
		)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(&sections, "zone:\n  name: %[1]s\n  zonefile: %[1]s\n", zone)
	}
	path, err := proctest.LookProgram("nsd")
	if err != nil {
		return fmt.Errorf("looking for the upstream: %w (on Debian: apt-get install nsd)", err)
	}
	conf, at := filepath.Join(b.dir, "nsd.conf"), netip.AddrPortFrom(b.net.Upstream.IPv4, 53)
	if err := os.WriteFile(conf, []byte(proctest.NSDConfig(at, b.dir, sections.String())), 0o600); err != nil {
		return fmt.Errorf("writing the upstream's configuration: %w", err)
	}
	b.report.Machine.Upstream = "NSD " + programVersion(ctx, path, "-v")
	b.upstream, err = proctest.Launch("nsd", b.net.Upstream.Command(context.WithoutCancel(ctx), path, "-d", "-c", conf))
	return err
}

// measure sets the rate, runs the rounds, and then measures what only the agent with answers in the kernel has.
func (b *kernelBench) measure(ctx context.Context) error {
	err := b.with(ctx, inProcess, func() error {
		full, err := b.load(ctx, longZone, 0, b.seconds)
		b.report.Full = int(full.Answered) / b.seconds
		b.report.Rate = b.report.Full / 2
		return err
	})
	if err != nil {
		return err
	}
	printf(b.progress, "hits off, as many queries as possible: %d answers/s; the rate is %d\n", b.report.Full, b.report.Rate)
	for round := range b.opts.rounds {
		if err := b.round(ctx, round); err != nil {
			return err
		}
	}
	for _, subject := range []string{turned, inKernel} {
		err := b.with(ctx, subject, func() (err error) {
			b.report.runTimes[subject], err = runTime(b.net.Node, func() error {
				_, err := b.load(ctx, longZone, b.report.Rate, b.seconds)
				return err
			})
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", subject, err)
		}
	}
	return b.with(ctx, inKernel, func() (err error) {
		if b.report.costs, err = passCosts(b.net.Node, "svc-0."+longZone); err != nil {
			return err
		}
		return b.measureShare(ctx)
	})
}

// round measures each subject once.
func (b *kernelBench) round(ctx context.Context, round int) error {
	for _, subject := range kernelSubjects() {
		err := b.with(ctx, subject, func() error {
			rate := b.report.Rate
			if subject == idle {
				rate = 1
			}
			s, err := b.load(ctx, longZone, rate, b.seconds)
			b.report.samples[subject] = append(b.report.samples[subject], s)
			printf(b.progress, "round %d %-12s %s\n", round+1, subject, s)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", subject, err)
		}
	}
	return nil
}

// with runs a measurement with a program at the pod's link, or with an agent, whose names have all been asked for.
func (b *kernelBench) with(ctx context.Context, subject string, run func() error) error {
	if subject == inProcess || subject == inKernel {
		return b.withAgent(ctx, subject == inKernel, run)
	}
	var programs turnPrograms
	if err := loadTurnObjects(&programs, nil); err != nil {
		return fmt.Errorf("loading the floor's program: %w", err)
	}
	defer func() { _ = programs.Close() }()
	detach, err := attach(b.net.Node, programs.Turn)
	if err != nil {
		return err
	}
	return errors.Join(run(), detach())
}

func (b *kernelBench) withAgent(ctx context.Context, hits bool, run func() error) error {
	mode := map[bool]string{false: "off", true: "on"}[hits]
	conf := filepath.Join(b.dir, "node-cache.yaml")
	text := fmt.Sprintf("listen: {addresses: [%s], port: 53}\nforward: [{zone: ., to: [%s]}]\nadmin: {address: \"127.0.0.1:9253\"}\n"+
		"kernel: {hits: %s}\nlog: {level: error}\n", kernelAddr(), b.net.Upstream.IPv4, mode)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return fmt.Errorf("writing a configuration: %w", err)
	}
	path, err := filepath.Abs(b.opts.nodeCache)
	if err != nil {
		return err
	}
	p, err := proctest.Launch("node-cache", b.net.Node.Command(context.WithoutCancel(ctx), path, "agent", "--config", conf))
	if err != nil {
		return err
	}
	defer p.Stop(grace)
	if err := b.awaitPod(ctx, p); err != nil {
		return err
	}
	// Each name is asked for several times: the kernel takes an answer when its name is asked for again.
	if _, err := b.load(ctx, longZone, 20_000, 2); err != nil {
		return err
	}
	return run()
}

// awaitPod waits until the agent answers the pod.
func (b *kernelBench) awaitPod(ctx context.Context, p *proctest.Process) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return p.Await(ctx, 20*time.Millisecond, func(ctx context.Context) error {
		conn, err := b.net.Pods[0].Dial(ctx, "udp", netip.AddrPortFrom(kernelAddr(), 53).String())
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		client := &dns.Client{Timeout: 200 * time.Millisecond}
		reply, _, err := client.ExchangeWithConn(new(dns.Msg).SetQuestion("svc-0."+longZone+".", dns.TypeA), &dns.Conn{Conn: conn})
		if err == nil && len(reply.Answer) == 0 {
			err = errors.New("a reply without an answer")
		}
		return err
	})
}

// load sends queries from the pod.
func (b *kernelBench) load(ctx context.Context, zone string, rate, seconds int) (s kernelSample, err error) {
	cmd := b.net.Pods[0].Command(ctx, b.paced, kernelAddr().String(), fmt.Sprint(rate), fmt.Sprint(seconds), filepath.Join(b.dir, zone+"-list"))
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return s, fmt.Errorf("sending queries: %w: %s", err, lastLine(errs.String()))
	}
	s.Seconds = seconds
	if _, err := fmt.Sscan(string(out), &s.Sent, &s.Answered, &s.Empty, &s.P50, &s.P99, &s.Used); err != nil {
		return s, fmt.Errorf("reading %q: %w", out, err)
	}
	return s, nil
}

// measureShare measures which share of the hits the kernel answers while answers expire.
func (b *kernelBench) measureShare(ctx context.Context) error {
	if _, err := b.load(ctx, shortZone, b.report.Rate, longestTTL/2); err != nil { // the ends of the TTLs spread
		return err
	}
	before, err := b.responses(ctx)
	if err != nil {
		return err
	}
	if _, err = b.load(ctx, shortZone, b.report.Rate, shareSeconds); err != nil {
		return err
	}
	// The agent reads the kernel's counters once a second.
	if err := retry.Sleep(ctx, 2*time.Second); err != nil {
		return err
	}
	after, err := b.responses(ctx)
	for source := range after {
		after[source] -= before[source]
	}
	b.report.responses = after
	return err
}

// responses returns the agent's answers so far, by source.
func (b *kernelBench) responses(ctx context.Context) (map[string]float64, error) {
	conn, err := b.net.Node.Dial(ctx, "tcp", "127.0.0.1:9253")
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "GET /metrics HTTP/1.0\r\n\r\n"); err != nil {
		return nil, err
	}
	page, err := io.ReadAll(conn)
	if err != nil {
		return nil, err
	}
	counts := map[string]float64{}
	for _, found := range regexp.MustCompile(`responses_total\{.*source="(\w+)".*\} (\S+)`).FindAllSubmatch(page, -1) {
		n, err := strconv.ParseFloat(string(found[2]), 64)
		if err != nil {
			return nil, err
		}
		counts[string(found[1])] += n
	}
	return counts, nil
}
