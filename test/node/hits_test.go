// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// withKernelHits is the configuration of an agent that answers hits in the kernel.
const withKernelHits = "kernel: {hits: on, permit: 1s}\n"

// awaitKernelHits waits until the kernel answers a pod.
func (b *harness) awaitKernelHits(t *testing.T, pod *nodetest.Host, addr int) {
	t.Helper()
	before := b.replies(t, "kernel")
	proctest.Eventually(t, time.Minute, "the kernel answers "+pod.Name, func() bool {
		_, _ = nodetest.Ask(pod, b.dnsAddrs[addr], "udp")
		return b.replies(t, "kernel") > before
	})
}

// replies returns the replies from a source; those of the kernel as of the agent's last count.
func (b *harness) replies(t *testing.T, source string) (sum int) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^nodecache_responses_total\{.*source="` + source + `".*\} (\d+)$`)
	for _, m := range line.FindAllStringSubmatch(b.adminPage(t, "/metrics"), -1) {
		n, _ := strconv.Atoi(m[1]) // it has digits only
		sum += n
	}
	return sum
}

// TestKernelHits kills and stops an agent that answers hits in the kernel. The fallback answers within the same time.
func TestKernelHits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		away func(daemon)
		back func(*testing.T, *harness, daemon) time.Time
	}{
		{"kill -9", daemon.kill, relaunch},
		{"kill -STOP", func(a daemon) { a.Signal(syscall.SIGSTOP) }, func(_ *testing.T, _ *harness, a daemon) time.Time {
			now := time.Now()
			a.Signal(syscall.SIGCONT)
			return now
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newHarness(t, options{extra: withKernelHits})
			a := b.start(t)
			for i, pod := range b.Pods {
				b.awaitKernelHits(t, pod, i)
			}
			b.outage(t, "hits in the kernel, "+tt.name, func() { tt.away(a) }, func() time.Time { return tt.back(t, b, a) })
			b.awaitKernelHits(t, b.Pods[0], 0)
		})
	}
}

// TestKernelHitsEnd ends an agent in each way, and looks for what it had in the kernel.
func TestKernelHitsEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testing.T, daemon){
		"kill -9": func(_ *testing.T, a daemon) { a.Kill() },
		"SIGTERM": func(t *testing.T, a daemon) { t.Helper(); a.end(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newHarness(t, options{extra: withKernelHits})
			a := b.start(t)
			b.awaitKernelHits(t, b.Pods[0], 0)
			had := bpfObjects(t, a.PID())
			if len(had) < 2+8+2*3 { // programs, maps, links
				t.Errorf("the agent has %d objects: %v", len(had), had)
			}
			end(t, a)
			// The kernel frees them a while after the last use.
			proctest.Eventually(t, time.Minute, "nothing is left in the kernel", func() bool {
				for _, o := range had {
					if o.exists() {
						return false
					}
				}
				return true
			})
		})
	}
}

// A bpfObject is a program, a map or a link in the kernel.
type bpfObject struct {
	kind string
	id   uint32
}

// bpfObjects returns those that a process has open.
func bpfObjects(t *testing.T, pid int) (list []bpfObject) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	assert.NoError(t, err)
	for _, file := range files {
		text, _ := os.ReadFile(file) // it may be closed by now
		for _, kind := range []string{"link", "map", "prog"} {
			m := regexp.MustCompile(`(?m)^` + kind + `_id:\s*(\d+)$`).FindSubmatch(text)
			if m == nil {
				continue
			}
			id, err := strconv.ParseUint(string(m[1]), 10, 32)
			assert.NoError(t, err)
			list = append(list, bpfObject{kind, uint32(id)})
			break // a link's has the ID of its program as well
		}
	}
	return list
}

// exists reports whether the kernel still has the object.
func (o bpfObject) exists() bool {
	var object io.Closer
	var err error
	switch o.kind {
	case "prog":
		object, err = ebpf.NewProgramFromID(ebpf.ProgramID(o.id))
	case "map":
		object, err = ebpf.NewMapFromID(ebpf.MapID(o.id))
	default:
		object, err = link.NewFromID(link.ID(o.id))
	}
	if err == nil {
		_ = object.Close()
	}
	return !errors.Is(err, os.ErrNotExist)
}

// TestKernelHandOver hands over between agents that answer hits in the kernel. No query is lost.
func TestKernelHandOver(t *testing.T) {
	b, last := startHandOver(t, options{extra: withKernelHits})
	for i, pod := range b.Pods {
		b.awaitKernelHits(t, pod, i)
	}
	before, dropped := b.fallbackQueries(), b.drops(t)
	l := b.flood(t)
	times := proctest.OrdinaryOrSoak(1, 50)
	for range times {
		next := b.launch(t)
		b.awaitHandOver(t, next)
		b.awaitKernelHits(t, b.Pods[0], 0)
		last.end(t)
		last = next
	}
	var sum nodetest.Report
	for _, r := range l.stop(t) {
		sum.Outcomes = append(sum.Outcomes, r.Outcomes...)
	}
	overflow, reasons := b.drops(t).since(dropped)
	if lost := sum.Count(nodetest.Lost) + sum.Count(nodetest.Refused); lost > overflow+sum.Count(nodetest.Late) {
		t.Errorf("%d queries were lost, and the kernel has dropped %d: %s", lost, overflow, reasons)
	}
	assert.Equal(t, "queries to the fallback", before, b.fallbackQueries())
	proctest.Figure(t, "handed over %d times with hits in the kernel: %s", times, sum)
}

// TestKernelPermit has the node's rules begin to drop the queries of one pod. The kernel answers it no longer than the configured
// time, and goes on to answer another one.
func TestKernelPermit(t *testing.T) {
	t.Parallel()
	const permit = time.Second
	b := newHarness(t, options{extra: withKernelHits})
	b.start(t)
	for i, pod := range b.Pods {
		b.awaitKernelHits(t, pod, i)
	}
	denied, allowed := b.Pods[0], b.Pods[1]
	m, err := nodetest.StartMeter(nodetest.MeterConfig{
		Host: denied, Target: b.dnsAddrs[0], Loads: []nodetest.Load{{Network: "udp", Rate: 200, Fresh: true}}, Timeout: 200 * time.Millisecond,
	})
	assert.NoError(t, err)
	t.Cleanup(func() { m.Stop() })
	m.Await(byAgent, time.Now(), time.Minute)
	b.run(t, "nft", "add table inet denied; add chain inet denied in { type filter hook input priority 0; };"+
		"add rule inet denied in iifname pod0 udp dport 53 drop")
	began := time.Now()
	end := began.Add(permit + b.scaled(t, 200*time.Millisecond))
	time.Sleep(time.Until(end.Add(permit)))
	before := m.Report().Between(began.Add(50*time.Millisecond), began.Add(permit/4))
	if before.Count(nodetest.Answered) == 0 {
		t.Errorf("just after the rule the kernel did not answer: %s", before)
	}
	if after := m.Stop().Between(end, end.Add(permit)); after.Count(nodetest.Answered) > 0 || after.Sent() == 0 {
		t.Errorf("%s after the rule: %s", ms(end.Sub(began)), after)
	}
	who, err := nodetest.Ask(allowed, b.dnsAddrs[1], "udp")
	assert.NoError(t, err)
	assert.Equal(t, "the other pod's server", byAgent, who)
	b.run(t, "nft", "delete table inet denied")
	b.awaitKernelHits(t, denied, 0)
	b.run(t, "nft", "flush ruleset")
	proctest.Eventually(t, time.Minute, "the rules are back", func() bool { return strings.Contains(b.rules(t), agentIPv4.String()) })
	b.awaitKernelHits(t, denied, 0)
}

// TestKernelLearner writes the table of a policy engine that learns names from DNS replies. The agent then answers each name of a pod now
// and then itself, and at once when the engine has started again and knows none.
func TestKernelLearner(t *testing.T) {
	t.Parallel()
	const permitName = 10 * time.Second // while no permit of the pod is to be renewed
	b := newHarness(t, options{extra: "kernel: {hits: on, permit: 1m}\n"})
	b.start(t)
	limit := func(seconds int) bool {
		return strings.Contains(b.adminPage(t, "/status"), fmt.Sprintf(`"permitNameSeconds": %d,`, seconds))
	}
	assert.Equal(t, "no limit without an engine", true, limit(0))
	b.awaitKernelHits(t, b.Pods[0], 0)
	b.run(t, "nft", "add table inet kube-network-policies-dnscache")
	proctest.Eventually(t, time.Minute, "the engine is found", func() bool { return limit(10) })
	b.awaitKernelHits(t, b.Pods[0], 0)
	before := b.replies(t, "cache")
	b.run(t, "nft", "delete table inet kube-network-policies-dnscache; add table inet kube-network-policies-dnscache")
	took := proctest.Eventually(t, time.Minute, "the agent answers again", func() bool {
		_, _ = nodetest.Ask(b.Pods[0], b.dnsAddrs[0], "udp")
		return b.replies(t, "cache") > before
	})
	if took > permitName/2 {
		t.Errorf("took %s", took)
	}
	b.awaitKernelHits(t, b.Pods[0], 0)
}
