// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/proctest"
)

// A kubelet probes an agent as the kubelet of a node would, but far more often: over a new connection each time, and
// with the kubelet's patience.
type kubelet struct {
	agent  *agent
	quit   chan struct{}
	asking sync.WaitGroup
	probes []*kubeletProbe
}

// A kubeletProbe is one page that is asked for.
type kubeletProbe struct {
	path    string
	timeout time.Duration

	mu     sync.Mutex // guards what follows
	took   []time.Duration
	failed []failure
}

// A failure is a probe that failed, and what the agent did meanwhile.
type failure struct {
	why   string
	share float64 // of a CPU that it got, in percent
	read  int64   // bytes that it waited for, from disks
}

// minCPUShare is the share of a CPU, in percent, below which an agent under load was kept from running by other programs.
const minCPUShare = 20

// startKubelet begins to probe, until end is called or the test ends.
func startKubelet(t *testing.T, a *agent) *kubelet {
	t.Helper()
	k := &kubelet{agent: a, quit: make(chan struct{}), probes: []*kubeletProbe{
		{path: "/readyz", timeout: time.Second}, {path: "/livez", timeout: 5 * time.Second},
	}}
	for _, p := range k.probes {
		k.asking.Go(func() { k.ask(p) })
	}
	t.Cleanup(k.end)
	return k
}

// ask asks for a page five times a second. It has a thread of its own, which goes before the load: the kubelet is another
// program, and how busy the load is does not count.
func (k *kubelet) ask(p *kubeletProbe) {
	runtime.LockOSThread() // and never unlocked: the thread ends with its priority
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -15)
	const pause = 200 * time.Millisecond
	for next := time.Now(); ; next = next.Add(pause) {
		select {
		case <-k.quit:
			return
		case <-time.After(time.Until(next)):
		}
		before, noStart := proctest.UsageOf(k.agent.PID())
		begun := time.Now()
		err := p.probe(k.agent.admin)
		took := time.Since(begun)
		after, noEnd := proctest.UsageOf(k.agent.PID())
		p.mu.Lock()
		p.took = append(p.took, took)
		if err != nil {
			p.failed = append(p.failed, failure{
				why:   fmt.Sprintf("after %s: %v", took.Round(time.Millisecond), errors.Join(err, noStart, noEnd)),
				share: 100 * float64(after.CPU-before.CPU) / float64(took), read: after.DiskRead - before.DiskRead,
			})
		}
		p.mu.Unlock()
	}
}

// probe asks once, with system calls that wait: the Go runtime, which the load keeps busy, is not in the way.
func (p *kubeletProbe) probe(to netip.AddrPort) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	deadline := time.Now().Add(p.timeout)
	left := func(option int) error {
		tv := unix.NsecToTimeval(int64(max(time.Until(deadline), time.Microsecond)))
		return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &tv)
	}
	request := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: kube-probe/1.36\r\nConnection: close\r\n\r\n", p.path, to)
	if err := errors.Join(left(unix.SO_SNDTIMEO), unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})); err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	if _, err := unix.Write(fd, []byte(request)); err != nil {
		return fmt.Errorf("sending: %w", err)
	}
	var reply []byte
	for part := make([]byte, 4096); ; {
		if err := left(unix.SO_RCVTIMEO); err != nil {
			return err
		}
		n, err := unix.Read(fd, part)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading after %q: %w", reply, err)
		}
		if n == 0 {
			break
		}
		reply = append(reply, part[:n]...)
	}
	if !bytes.HasPrefix(reply, []byte("HTTP/1.1 200 ")) {
		return fmt.Errorf("got %q", reply)
	}
	if time.Now().After(deadline) {
		return errors.New("too late")
	}
	return nil
}

// end probes no more. It may be called twice.
func (k *kubelet) end() {
	select {
	case <-k.quit:
	default:
		close(k.quit)
	}
	k.asking.Wait()
}

// failures ends the probing and says how many probes failed.
func (k *kubelet) failures() (n int) {
	k.end()
	for _, p := range k.probes {
		n += len(p.failed)
	}
	return n
}

// check ends the probing and says how it went: not one probe may have failed, but for those that are excused. Without
// excused none is.
func (k *kubelet) check(t *testing.T, excused func(f failure) bool) {
	t.Helper()
	k.end()
	for _, p := range k.probes {
		slices.Sort(p.took)
		proctest.Figure(t, "%s: %d probes, %d failed; median %s, p99 %s, longest %s", p.path, len(p.took), len(p.failed),
			ms(quantile(p.took, 500)), ms(quantile(p.took, 990)), ms(quantile(p.took, 1000)))
		for _, f := range p.failed {
			if excused != nil && excused(f) {
				proctest.Figure(t, "%s failed, which is excused, %s, with %.0f %% of a CPU and %d bytes read", p.path, f.why, f.share, f.read)
				continue
			}
			t.Errorf("%s failed %s; meanwhile the agent had %.0f %% of a CPU and %d bytes read", p.path, f.why, f.share, f.read)
		}
		if len(p.took) == 0 {
			t.Errorf("%s was never asked for", p.path)
		}
	}
}
