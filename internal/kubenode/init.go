// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// initName is what the first process of a machine is called, by which the test binary recognizes it.
const initName = "kubenode-init"

// On every machine, in a file system of its own.
const (
	stateFolder   = "/run/kubenode"
	binFolder     = stateFolder + "/bin" // first in PATH
	requestSocket = stateFolder + "/init.sock"
)

// nodePath is where the programs of a machine look for others.
const nodePath = binFolder + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Main is the machine's part of this program. TestMain calls it before anything else, and ends with the status when it
// was for this.
func Main() (status int, mine bool) {
	var err error
	switch filepath.Base(os.Args[0]) {
	case initName:
		err = runInit()
	case "systemctl":
		err = systemctl(os.Args[1:])
	default:
		return 0, false
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		return 1, true
	}
	return 0, true
}

// runInit is the first process of a machine. It reports that it is ready by a line in file 3, then starts and ends services
// on request, and returns only with an error.
func runInit() error {
	if os.Getpid() != 1 {
		return errors.New("this is no process to be started by hand")
	}
	ready := os.NewFile(3, "ready")
	if err := enterHost(os.Args[1]); err != nil {
		return err
	}
	listener, err := net.Listen("unix", requestSocket) //nolint:noctx // until the machine ends
	if err != nil {
		return fmt.Errorf("listening for requests: %w", err)
	}
	if _, err := fmt.Fprintln(ready, "ready"); err != nil {
		return fmt.Errorf("notifying the test: %w", err)
	}
	if err := ready.Close(); err != nil {
		return err
	}
	server := rpc.NewServer()
	if err := server.RegisterName("services", newServices()); err != nil {
		return err
	}
	server.Accept(listener)
	return errors.New("nothing accepts requests any more")
}

// enterHost makes this process's namespaces a machine of that name.
func enterHost(name string) error {
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("setting the host's name: %w", err)
	}
	if err := mountAll(); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding the loopback device: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("setting the loopback device up: %w", err)
	}
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/"+key, []byte("1"), 0o644); err != nil {
			return fmt.Errorf("setting %s: %w", key, err)
		}
	}
	return nil
}

// mountAll gives the machine its own processes in /proc and its own files where programs keep state.
func mountAll() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("parting from the machine's mounts: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	for _, folder := range []string{"/run", "/var/lib", "/var/log"} {
		if err := unix.Mount("kubenode", folder, "tmpfs", unix.MS_NODEV, "mode=0755"); err != nil {
			return fmt.Errorf("mounting %s: %w", folder, err)
		}
	}
	// The folders that later steps and the services need.
	folders := []string{
		binFolder, stateFolder + "/etc", stateFolder + "/work", stateFolder + "/sysctl", "/run/lock", "/var/lib/kubelet",
	}
	for _, folder := range folders {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return fmt.Errorf("making a folder: %w", err)
		}
	}
	layers := fmt.Sprintf("lowerdir=/etc,upperdir=%[1]s/etc,workdir=%[1]s/work", stateFolder)
	if err := unix.Mount("kubenode", "/etc", "overlay", 0, layers); err != nil {
		return fmt.Errorf("mounting /etc: %w", err)
	}
	if err := os.Remove("/etc/resolv.conf"); err != nil && !errors.Is(err, os.ErrNotExist) { // it may be a link
		return fmt.Errorf("removing resolv.conf: %w", err)
	}
	return fakeSysctls()
}

// fakeSysctls shows the kubelet the settings of the kernel that it wants, so that it leaves those of the machine that
// runs the test alone.
func fakeSysctls() error {
	for key, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		shown := filepath.Join(stateFolder, "sysctl", strings.ReplaceAll(key, "/", "."))
		if err := os.WriteFile(shown, []byte(value+"\n"), 0o644); err != nil {
			return fmt.Errorf("writing a setting: %w", err)
		}
		if err := unix.Mount(shown, "/proc/sys/"+key, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("showing setting %s: %w", key, err)
		}
	}
	return nil
}

// systemctl stands for the program of that name on a node: it restarts services.
func systemctl(args []string) error {
	if len(args) != 2 || args[0] != "restart" {
		return errors.New("usage: systemctl restart SERVICE")
	}
	return request(requestSocket, "Restart", strings.TrimSuffix(args[1], ".service"))
}

// request calls a method of the services of a machine.
func request(socket, method string, arg any) error {
	client, err := rpc.Dial("unix", socket)
	if err != nil {
		return fmt.Errorf("asking the machine: %w", err)
	}
	defer func() { _ = client.Close() }()
	if err := client.Call("services."+method, arg, new(bool)); err != nil {
		return fmt.Errorf("%s %v: %w", method, arg, err)
	}
	return nil
}
