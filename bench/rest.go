// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/procfs"
	"golang.org/x/sync/errgroup"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/retry"
)

const (
	restPods    = 30
	probeRuns   = 200
	probePeriod = 10 * time.Second // of the kubelet's probes
	podPeriod   = 10 * time.Second // between two queries of a pod, under the light load
	settling    = 40 * time.Second // CoreDNS's plugin loop asks for 30 s
)

// kubeDNS is the one Service of the node's cluster.
const kubeDNS = `{apiVersion: v1, kind: Service, metadata: {name: kube-dns, namespace: kube-system}, spec: {clusterIP: 10.96.0.10,
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]}}
`

// A restSubject is a server on the node, and what the kubelet does to it.
type restSubject struct {
	server

	page  string   // of the probe over HTTP
	probe []string // arguments of the probe by a program; nil: none
}

func restSubjects() []restSubject {
	return []restSubject{
		{server{name: oursName, config: "node-cache-rest.yaml", args: "agent --config {{.Conf}}"}, "http://169.254.20.10:9253/livez", []string{"ready"}},
		{server{name: "nodelocaldns", config: "Corefile-rest", args: "-quiet -conf {{.Conf}}"}, "http://169.254.20.10:8080/health", nil},
	}
}

// A restSample is a server over some minutes.
type restSample struct {
	name, load           string
	ms, probes, switches float64 // CPU in ms a second of the server and of its probes' program, and context switches a second
	mib                  float64
}

// A probeCost is one way to ask whether the agent is ready. All are medians.
type probeCost struct {
	name   string
	ms     float64 // CPU
	faults float64
}

// measureRest measures servers on a node whose pods ask little or nothing.
func measureRest(ctx context.Context, opts options, progress io.Writer) (_ report, err error) {
	dir, err := os.MkdirTemp("", "dns-bench-")
	if err != nil {
		return nil, fmt.Errorf("creating a folder: %w", err)
	}
	b := &restBench{harness: &harness{dir: dir, progress: progress}, opts: opts, report: restReport{Machine: describeMachine(), Seconds: opts.seconds}}
	defer b.close()
	if b.opts.nodeCache, err = filepath.Abs(opts.nodeCache); err != nil {
		return nil, err
	}
	for _, s := range restSubjects() {
		if err := b.trial(ctx, s); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return &b.report, nil
}

type restBench struct {
	*harness

	opts   options
	net    *nodetest.Network
	report restReport
}

// trial runs a server on a new node.
func (b *restBench) trial(ctx context.Context, s restSubject) (err error) {
	if b.net, err = nodetest.New(nodetest.Options{Pods: restPods, NoIPv6: true}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.net.Close()) }()
	if s.path = b.opts.nodeCache; s.name != oursName {
		if s.path, err = kubetest.Program(ctx, "coredns"); err == nil {
			err = b.net.Node.AddAddress(kernelAddr())
		}
	}
	if err != nil {
		return err
	}
	var upstream *nodetest.Server
	if upstream, err = nodetest.Serve(b.net.Upstream, netip.AddrPortFrom(nodetest.ServiceIPv4(), 53), "upstream"); err != nil { //nolint:contextcheck // it serves until Close
		return err
	}
	defer upstream.Close()
	at, err := b.place(ctx, s.server, site{})
	if err == nil {
		err = os.WriteFile(filepath.Join(at.Dir, "kube-dns.yaml"), []byte(kubeDNS), 0o600)
	}
	if err != nil {
		return err
	}
	args, err := at.expand(s.args)
	if err != nil {
		return err
	}
	p, err := proctest.Launch(s.name, b.net.Node.Command(context.WithoutCancel(ctx), "sh", "-c", "exec "+s.path+" "+args))
	if err != nil {
		return err
	}
	defer p.Stop(grace)
	if err := b.awaitPods(ctx, p); err != nil {
		return err
	}
	if err := retry.Sleep(ctx, settling); err != nil {
		return err
	}
	for _, load := range []string{"none", "light"} {
		sample, err := b.watch(ctx, &s, p.PID(), at, load)
		if err != nil {
			return err
		}
		b.report.Samples = append(b.report.Samples, sample)
		printf(b.progress, "%+v\n", sample)
	}
	if s.probe != nil {
		return b.probeCosts(ctx, at)
	}
	return nil
}

// ask sends a pod's query.
func (b *restBench) ask(ctx context.Context, pod int) error {
	conn, err := b.net.Pods[pod].Dial(ctx, "udp", netip.AddrPortFrom(kernelAddr(), 53).String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client := &dns.Client{Timeout: time.Second}
	_, _, err = client.ExchangeWithConn(new(dns.Msg).SetQuestion(fmt.Sprintf("host-%d.test.", pod%10), dns.TypeA), &dns.Conn{Conn: conn})
	return err
}

func (b *restBench) awaitPods(ctx context.Context, p *proctest.Process) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return p.Await(ctx, 50*time.Millisecond, func(ctx context.Context) error { return b.ask(ctx, 0) })
}

// watch reads what a server uses while the kubelet probes it, and each pod asks once in ten seconds if there is a load.
func (b *restBench) watch(ctx context.Context, s *restSubject, pid int, at site, load string) (restSample, error) {
	length := time.Duration(b.opts.seconds) * time.Second
	sample := restSample{name: s.name, load: load}
	before, err := readRest(pid)
	if err != nil {
		return sample, err
	}
	during, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var group errgroup.Group
	var probes time.Duration
	group.Go(func() error {
		return every(during, probePeriod, func() error {
			if s.probe != nil {
				used, _, err := b.runProbe(ctx, at, s.probe...)
				if probes += used; err != nil {
					return err
				}
			}
			_, err := nodetest.Fetch(ctx, b.net.Node, "GET", s.page)
			return err
		})
	})
	pods := 0
	group.Go(func() error {
		return every(during, podPeriod/restPods, func() error {
			if pods++; load == "none" {
				return nil
			}
			return b.ask(ctx, pods%restPods)
		})
	})
	if err := errors.Join(group.Wait(), ctx.Err()); err != nil {
		return sample, err
	}
	after, err := readRest(pid)
	sample.ms = 1000 * (after.cpu - before.cpu).Seconds() / length.Seconds()
	sample.probes = 1000 * probes.Seconds() / length.Seconds()
	sample.switches = float64(after.switches-before.switches) / length.Seconds()
	sample.mib = float64(after.rss) / mib
	return sample, err
}

// every calls fn at an interval until ctx ends.
func every(ctx context.Context, interval time.Duration, fn func() error) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := fn(); err != nil {
			return err
		}
	}
}

// restUsage is what a process has used so far.
type restUsage struct {
	cpu      time.Duration
	switches uint64 // of all its threads: each is a wake-up before or after it
	rss      int64
}

func readRest(pid int) (u restUsage, err error) {
	used, err := proctest.UsageOf(pid)
	if err != nil {
		return u, err
	}
	u.cpu, u.rss = used.CPU, used.RSS
	threads, err := procfs.AllThreads(pid)
	for _, thread := range threads {
		if status, err := thread.NewStatus(); err == nil { // it may have ended
			u.switches += status.VoluntaryCtxtSwitches + status.NonVoluntaryCtxtSwitches
		}
	}
	return u, err
}

// runProbe asks the agent by its socket, as the kubelet does, and returns the CPU time and the page faults of the program.
func (b *restBench) runProbe(ctx context.Context, at site, args ...string) (cpu time.Duration, faults int64, err error) {
	cmd := exec.CommandContext(ctx, b.opts.nodeCache, args...)
	cmd.Env = append(os.Environ(), "NODE_CACHE_ADMIN=unix:"+filepath.Join(at.Dir, "admin.sock"))
	if err := cmd.Run(); err != nil {
		return 0, 0, fmt.Errorf("probing: %w", err)
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), cmd.ProcessState.SysUsage().(*syscall.Rusage).Minflt, nil
}

// probeCosts measures a probe, and the same answer by the command.
func (b *restBench) probeCosts(ctx context.Context, at site) error {
	for _, args := range [][]string{{"ready"}, {"ready", "--output", "text"}} {
		var ms, faults []float64
		for range probeRuns {
			cpu, count, err := b.runProbe(ctx, at, args...)
			if err != nil {
				return err
			}
			ms, faults = append(ms, 1000*cpu.Seconds()), append(faults, float64(count))
		}
		name := map[int]string{1: "`node-cache ready`", 3: "the same with Go's runtime"}[len(args)]
		b.report.Probes = append(b.report.Probes, probeCost{name, median(ms), median(faults)})
	}
	return nil
}
