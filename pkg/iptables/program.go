// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	goiptables "github.com/coreos/go-iptables/iptables"
	"github.com/vishvananda/netns"
)

// A program is the iptables program of one family and variant, with its -save and -restore.
type program struct {
	v6          bool
	path        string // path of iptables; -save and -restore are in the same directory
	randomFully bool   // MASQUERADE supports --random-fully
	lister      *goiptables.IPTables
	wait        string         // longest wait for the xtables lock in seconds
	namespace   netns.NsHandle // network namespace in which it runs
	env         []string       // added to the agent's own; tests only
	runs        atomic.Int64   // number of programs that were run; read by tests only
}

// findProgram locates the program of a variant and family: by the variant's own name, such as
// iptables-nft, or by the common name, such as iptables, if that program is of this variant.
func findProgram(variant Variant, v6 bool, wait time.Duration, in netns.NsHandle) (*program, error) {
	common, proto := "iptables", goiptables.ProtocolIPv4
	if v6 {
		common, proto = "ip6tables", goiptables.ProtocolIPv6
	}
	seconds := int((max(wait, 1) + time.Second - 1) / time.Second)
	errs := make([]error, 0, 2)
	for _, name := range []string{common + "-" + string(variant), common} {
		path, err := locate(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		lister, err := goiptables.New(goiptables.IPFamily(proto), goiptables.Path(path), goiptables.Timeout(seconds))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		is, err := variantOf(path)
		if err == nil && is == variant {
			return &program{
				v6: v6, path: path, lister: lister, randomFully: lister.HasRandomFully(), wait: fmt.Sprint(seconds), namespace: in,
			}, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("finding %s of the variant %s: %w", common, variant, errors.Join(append(errs, errNoProgram)...))
}

var errNoProgram = errors.New("not installed: add the package iptables to the image or the node")

// locate finds a program in PATH or in a sbin directory.
func locate(name string) (string, error) {
	for _, dir := range []string{"", "/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s not found", name)
}

// variantOf returns the variant of a program.
func variantOf(path string) (Variant, error) {
	out, err := exec.CommandContext(context.Background(), path, "--version").Output()
	switch {
	case err != nil:
		return "", fmt.Errorf("running %s --version: %w", path, err)
	case bytes.Contains(out, []byte("nf_tables")):
		return Nft, nil
	}
	return Legacy, nil
}

// list returns the rules of one existing chain. It may wait for the xtables lock.
func (p *program) list(table, name string) (lines []string, err error) {
	err = inNamespace(p.namespace, func() error {
		p.runs.Add(1)
		lines, err = p.lister.List(table, name)
		return err
	})
	if err != nil {
		return nil, withHint(err)
	}
	return lines, nil
}

// save returns the rules of a table. It waits for no lock.
func (p *program) save(ctx context.Context, table string) ([]string, error) {
	out, err := p.run(ctx, "-save", "", "-t", table)
	return strings.Split(out, "\n"), err
}

// restore writes changes to tables.
func (p *program) restore(ctx context.Context, changes string) error {
	_, err := p.run(ctx, "-restore", changes, "--noflush", "--wait", p.wait)
	return err
}

func (p *program) run(ctx context.Context, suffix, input string, args ...string) (string, error) {
	var out, complaint bytes.Buffer
	err := inNamespace(p.namespace, func() error {
		p.runs.Add(1)
		cmd := exec.CommandContext(ctx, p.path+suffix, args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &complaint
		cmd.WaitDelay = 10 * time.Second // on a busy node the output is read long after the program ends
		if p.env != nil {
			cmd.Env = append(os.Environ(), p.env...)
		}
		return cmd.Run()
	})
	if err == nil {
		return out.String(), nil
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	text := strings.Join(strings.Fields(complaint.String()), " ")
	return "", withHint(fmt.Errorf("running %s%s %s: %w: %s", filepath.Base(p.path), suffix, strings.Join(args, " "), err, text))
}

// inNamespace calls fn on a thread in a network namespace. Programs that fn runs are in it
// too. The agent has one namespace; tests have several. A thread that cannot return to its
// own namespace ends with its goroutine.
func inNamespace(ns netns.NsHandle, fn func() error) error {
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("reading the network namespace: %w", err)
	}
	defer func() { _ = before.Close() }()
	if before.Equal(ns) {
		runtime.UnlockOSThread()
		return fn()
	}
	defer func() {
		if netns.Set(before) == nil {
			runtime.UnlockOSThread()
		}
	}()
	if err := netns.Set(ns); err != nil {
		return fmt.Errorf("entering the network namespace: %w", err)
	}
	return fn()
}

// ErrLocked means that another program held the xtables lock for longer than
// Config.LockWait. The operation had no effect, or the next call completes it.
var ErrLocked = errors.New("another program holds the xtables lock")

// withHint adds the likely cause to the error of a program, and makes it wrap ErrLocked if another program held the lock.
func withHint(err error) error {
	text := err.Error()
	says := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
	}
	switch {
	case says("holding the xtables lock", "Can't lock "):
		return fmt.Errorf("%w: %w", ErrLocked, err)
	case says("can't open lock file"):
		return fmt.Errorf("%w: mount the node's /run/xtables.lock, or name a file that all users of iptables on the node share in XTABLES_LOCKFILE", err)
	case says("Can't open socket to ipset", "you must be root", "Operation not permitted"):
		return fmt.Errorf("%w: it needs the capabilities NET_ADMIN and NET_RAW", err)
	case says("Table does not exist", "do you need to insmod"):
		return fmt.Errorf("%w: the kernel lacks the module iptable_raw, iptable_nat or iptable_filter, or with IPv6 those of ip6table_", err)
	case says("missing kernel module", "failed (No such file or directory)", "No chain/target/match by that name", "Couldn't load match", "Couldn't load target", "Extension "):
		return fmt.Errorf("%w: the kernel may lack one of the modules xt_set, xt_CT, xt_mark, xt_conntrack, xt_statistic, xt_nat, xt_MASQUERADE and ipt_REJECT", err)
	}
	return err
}
