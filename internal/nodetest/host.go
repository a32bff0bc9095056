// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A Host is a network namespace.
type Host struct {
	Name string
	IPv4 netip.Addr // its first address; of the node: the one towards the upstream host
	IPv6 netip.Addr // the same; not valid in a network without IPv6

	lock string       // the file that iptables-legacy locks
	mu   sync.RWMutex // guards ns: written by Close only
	ns   netns.NsHandle
}

// errClosed reports that the host's namespace is gone.
var errClosed = errors.New("the network is closed")

// open creates the namespace.
func (h *Host) open() error {
	h.ns = netns.None()
	restore, err := lockThread()
	if err != nil {
		return err
	}
	defer restore()
	if h.ns, err = netns.New(); err != nil { // enters it
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	// Addresses must be usable at once, without duplicate address detection.
	for _, key := range []string{"net/ipv6/conf/default/accept_dad", "net/ipv6/conf/all/accept_dad", "net/ipv6/conf/default/accept_ra"} {
		if err := writeSysctl(key, "0"); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(lo)
}

// NewNamespace moves the calling thread into a new network namespace, and returns its loopback link, which is up.
func NewNamespace() (netlink.Link, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("making a network namespace, which only root may: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("finding the loopback device: %w", err)
	}
	return lo, netlink.LinkSetUp(lo)
}

// EnterNamespace is [NewNamespace] for a test, which keeps its thread. It skips the test without root.
func EnterNamespace(t *testing.T) netlink.Link {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	runtime.LockOSThread() // for good: the thread ends with the test
	lo, err := NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	return lo
}

// Of returns the host whose network a process is in, until Release.
func Of(pid int, name string) (*Host, error) {
	ns, err := netns.GetFromPid(pid)
	return &Host{Name: name, ns: ns}, err
}

// Release gives up a host that is another program's.
func (h *Host) Release() { _ = h.ns.Close() }

// lockThread locks the calling goroutine to its thread. The function restore returns the thread to its present
// namespace and unlocks it.
func lockThread() (restore func(), err error) {
	runtime.LockOSThread()
	was, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("opening the thread's network namespace: %w", err)
	}
	return func() {
		// A thread that cannot return to its namespace stays locked, so that it ends with this goroutine.
		if netns.Set(was) == nil {
			runtime.UnlockOSThread()
		}
		_ = was.Close()
	}, nil
}

// Do calls fn in the host's namespace, on the calling goroutine, which keeps its thread meanwhile. Sockets that fn
// opens and processes that it starts stay in the namespace. Goroutines that fn starts do not run there.
func (h *Host) Do(fn func() error) error {
	restore, err := lockThread()
	if err != nil {
		return err
	}
	defer restore()
	if err := h.Enter(); err != nil {
		return fmt.Errorf("entering host %s: %w", h.Name, err)
	}
	return fn()
}

// Enter moves the calling thread into the host's namespace for good. The caller has locked its goroutine to the
// thread and lets both end together. Most callers need Do.
func (h *Host) Enter() error {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if !h.ns.IsOpen() {
		return errClosed
	}
	return netns.Set(h.ns)
}

// Path is a path of the host's namespace for other programs, for example nsenter --net=PATH. It is valid while this
// process lives.
func (h *Host) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(h.ns)) }

// Command prepares a program that runs in the host's namespace. The kernel kills it when the thread that starts it
// ends: start it from a goroutine that never calls [runtime.LockOSThread].
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + h.Path(), "--", findProgram(name)}, args...)...)
	cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+h.lock)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// XtablesLock is the lock file of iptables-legacy for programs that Command starts. Without it they would lock the
// machine's.
func (h *Host) XtablesLock() string { return h.lock }

// findProgram looks for a program on PATH and in the sbin folders.
func findProgram(name string) string {
	for _, dir := range []string{"", "/usr/sbin", "/sbin"} {
		if found, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return found
		}
	}
	return name // the caller's start then reports the missing program
}

// Output runs a program in the host and returns its standard output and standard error.
func (h *Host) Output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := h.Command(ctx, name, args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: running %s %v: %w: %s", h.Name, name, args, err, out)
	}
	return string(out), nil
}

// Dial connects from the host. The address is literal: IP:port.
func (h *Host) Dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	if _, err := netip.ParseAddrPort(addr); err != nil {
		return nil, err // other threads would resolve and dial a name, in another namespace
	}
	err = h.Do(func() error {
		var d net.Dialer
		conn, err = d.DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// Sysctl sets a kernel parameter of the host, for example net/netfilter/nf_conntrack_max.
func (h *Host) Sysctl(key, value string) error {
	return h.Do(func() error { return writeSysctl(key, value) })
}

// writeSysctl sets a kernel parameter in the namespace of the calling thread.
func writeSysctl(key, value string) error {
	if err := os.WriteFile("/proc/sys/"+key, []byte(value), 0o644); err != nil {
		return fmt.Errorf("setting %s: %w", key, err)
	}
	return nil
}

// Close removes the host's links, even if other processes still hold the namespace, and releases the namespace.
func (h *Host) Close() error {
	err := h.Do(removeLinks)
	if errors.Is(err, errClosed) {
		return nil
	}
	if err != nil {
		err = fmt.Errorf("removing the links of host %s: %w", h.Name, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return errors.Join(err, h.ns.Close())
}

// removeLinks removes the veth pairs of the calling thread's namespace.
func removeLinks() error {
	links, err := netlink.LinkList()
	for range 100 {
		if !errors.Is(err, netlink.ErrDumpInterrupted) { // a link was added or removed meanwhile
			break
		}
		links, err = netlink.LinkList()
	}
	errs := []error{err}
	for _, link := range links {
		if link.Type() != "veth" {
			continue
		}
		// The peer goes with it, so the next host may have no link left.
		if err := netlink.LinkDel(link); !errors.Is(err, unix.ENODEV) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
