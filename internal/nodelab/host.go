// SPDX-License-Identifier: Apache-2.0

package nodelab

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

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A Host is a network namespace.
type Host struct {
	Name string
	IPv4 netip.Addr // its first address; of the node: the one towards the upstream host
	IPv6 netip.Addr // the same; not valid in a lab without IPv6

	lock string       // the file that iptables-legacy locks
	mu   sync.RWMutex // guards ns: written by close only
	ns   netns.NsHandle
}

// errClosed says that the host is gone.
var errClosed = errors.New("the lab is closed")

// open makes the namespace.
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
	// Addresses are to be there at once, not when it is known that nobody else has them.
	for _, key := range []string{"net/ipv6/conf/default/accept_dad", "net/ipv6/conf/all/accept_dad", "net/ipv6/conf/default/accept_ra"} {
		if err := writeSysctl(key, "0"); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(lo)
}

// lockThread keeps the calling goroutine on its thread until restore is called, which also takes the thread back to
// the namespace it is in now.
func lockThread() (restore func(), err error) {
	runtime.LockOSThread()
	was, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("opening the thread's network namespace: %w", err)
	}
	return func() {
		// A thread that cannot go back is not given to others: it ends with this goroutine.
		if netns.Set(was) == nil {
			runtime.UnlockOSThread()
		}
		_ = was.Close()
	}, nil
}

// Do calls fn in the host's namespace, on the calling goroutine, which keeps its thread meanwhile. Sockets that fn
// opens and processes that it starts belong to the host for good. Goroutines that fn starts do not run there.
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

// Enter takes the calling thread into the host's namespace for good. The caller has locked its goroutine to the thread,
// and lets both end together. Do is what most need.
func (h *Host) Enter() error {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if !h.ns.IsOpen() {
		return errClosed
	}
	return netns.Set(h.ns)
}

// Path is a path of the host's namespace for other programs, nsenter --net=PATH say, while this process lives.
func (h *Host) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(h.ns)) }

// Command is a program that runs in the host's namespace. It is killed when the thread that starts it ends, and so
// with this process: start it from a goroutine that never calls [runtime.LockOSThread].
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + h.Path(), "--", find(name)}, args...)...)
	cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+h.lock)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// XtablesLock is the file that iptables-legacy of this host locks when it is run by Command. The one that it would lock
// otherwise is the machine's.
func (h *Host) XtablesLock() string { return h.lock }

// find looks for a program also where Debian keeps those of root.
func find(name string) string {
	for _, dir := range []string{"", "/usr/sbin", "/sbin"} {
		if found, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return found
		}
	}
	return name // whoever runs it is told that it is not there
}

// Output runs a program in the host and returns what it wrote, standard error included.
func (h *Host) Output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := h.Command(ctx, name, args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: running %s %v: %w: %s", h.Name, name, args, err, out)
	}
	return string(out), nil
}

// Dial connects from the host. The address is a literal one: IP:port.
func (h *Host) Dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	if _, err := netip.ParseAddrPort(addr); err != nil {
		return nil, err // a name would be looked up, and dialled, on other threads
	}
	err = h.Do(func() error {
		var d net.Dialer
		conn, err = d.DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// Sysctl sets a setting of the host's network, for instance net/netfilter/nf_conntrack_max.
func (h *Host) Sysctl(key, value string) error {
	return h.Do(func() error { return writeSysctl(key, value) })
}

// writeSysctl writes a setting of the namespace of the calling thread.
func writeSysctl(key, value string) error {
	if err := os.WriteFile("/proc/sys/"+key, []byte(value), 0o644); err != nil {
		return fmt.Errorf("setting %s: %w", key, err)
	}
	return nil
}

// close takes the host's links away, whoever still holds the namespace, and gives it up.
func (h *Host) close() error {
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

// removeLinks removes the cables of the calling thread's namespace.
func removeLinks() error {
	links, err := netlink.LinkList()
	for range 100 {
		if !errors.Is(err, netlink.ErrDumpInterrupted) { // by a link that comes or goes
			break
		}
		links, err = netlink.LinkList()
	}
	errs := []error{err}
	for _, link := range links {
		if link.Type() != "veth" {
			continue
		}
		// Its peer goes with it, so that the next host may find its own gone already.
		if err := netlink.LinkDel(link); !errors.Is(err, unix.ENODEV) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
