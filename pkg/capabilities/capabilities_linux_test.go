// SPDX-License-Identifier: Apache-2.0

package capabilities_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/capabilities"
)

// keepKey is the environment variable with the capabilities that a test process keeps. It
// is not set in the process that runs the tests.
const keepKey = "CAPABILITIES_TEST_KEEP"

func TestMain(m *testing.M) {
	if keep, ok := os.LookupEnv(keepKey); ok {
		if err := json.NewEncoder(os.Stdout).Encode(child(strings.Fields(keep))); err != nil {
			panic(err)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A report is what a test process reads about itself.
type report struct {
	Before  []string // missing of the three capabilities, before the drop
	Threads []status // the distinct ones of all threads
	Count   int      // of threads
	Missing []string // missing of the three after the drop, read by another thread
	Program status   // of a program that the process runs
	Err     string
	Again   string // the error of a second drop
}

// A status holds the capability lines of /proc/PID/status.
type status struct{ Inh, Prm, Eff, Bnd, Amb, NoNewPrivs string }

func readStatus(text string) (s status) {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		for name, field := range map[string]*string{
			"CapInh": &s.Inh, "CapPrm": &s.Prm, "CapEff": &s.Eff, "CapBnd": &s.Bnd, "CapAmb": &s.Amb, "NoNewPrivs": &s.NoNewPrivs,
		} {
			if key == name {
				*field = value
			}
		}
	}
	return s
}

// child drops capabilities in a process with threads of every kind: idle, in a
// system call, locked to a goroutine, and one that starts later.
func child(keep []string) (r report) {
	needs := []cap.Value{capabilities.NetAdmin, capabilities.NetBindService, capabilities.NetRaw}
	r.Before = capabilities.Missing(needs...)
	list := make([]cap.Value, len(keep))
	for i, k := range keep {
		list[i], _ = cap.FromName("cap_" + strings.ToLower(k))
	}
	stop := make(chan struct{})
	var locked, ready sync.WaitGroup
	defer locked.Wait()
	defer close(stop)
	hold := func(wait func()) {
		ready.Add(1)
		locked.Go(func() {
			runtime.LockOSThread()
			ready.Done()
			wait()
		})
	}
	pipe := make([]int, 2)
	if err := syscall.Pipe(pipe); err != nil {
		panic(err)
	}
	defer func() { _ = syscall.Close(pipe[1]) }() // ends the read
	hold(func() { <-stop })
	hold(func() { _, _ = syscall.Read(pipe[0], make([]byte, 1)) })
	ready.Wait()
	if err := capabilities.Drop(list); err != nil {
		r.Err = err.Error()
	}
	for range 3 {
		hold(func() { <-stop })
	}
	ready.Wait()
	files, _ := filepath.Glob("/proc/self/task/*/status")
	seen := map[status]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if s := readStatus(string(text)); err == nil && !seen[s] {
			seen[s] = true
			r.Threads = append(r.Threads, s)
		}
		r.Count++
	}
	r.Missing = capabilities.Missing(needs...)
	text, err := exec.Command("cat", "/proc/self/status").Output()
	if err != nil {
		r.Err += err.Error()
	}
	r.Program = readStatus(string(text))
	if err := capabilities.Drop(list); err != nil {
		r.Again = err.Error()
	}
	return r
}

// spell formats a set of capabilities as the kernel does.
func spell(list ...uintptr) string {
	var bits uint64
	for _, v := range list {
		bits |= 1 << v
	}
	return fmt.Sprintf("%016x", bits)
}

func TestDrop(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, which has capabilities to drop")
	}
	text, err := os.ReadFile("/proc/self/status")
	assert.NoError(t, err)
	own := readStatus(string(text))
	if full := needed(own.Eff); !full {
		t.Skipf("this root lacks capabilities that the test needs: %s", own.Eff)
	}
	admin, bind := spell(unix.CAP_NET_ADMIN), spell(unix.CAP_NET_BIND_SERVICE)
	both, none := spell(unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE), spell()
	unprivileged := func(ambient ...uintptr) *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, AmbientCaps: ambient}
	}
	for _, tt := range []struct {
		name          string
		keep          string
		attr          *syscall.SysProcAttr
		before, after []string
		want          status // of every thread
		program       status
	}{
		{
			name: "root, all", after: []string{"NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW"},
			want: status{none, none, none, none, none, "1"}, program: status{none, none, none, none, none, "1"},
		},
		{
			name: "root, all but one", keep: "NET_ADMIN", after: []string{"NET_BIND_SERVICE", "NET_RAW"},
			want: status{none, admin, admin, admin, none, "1"}, program: status{none, admin, admin, admin, none, "1"},
		},
		{
			name: "root, all but two", keep: "NET_BIND_SERVICE NET_ADMIN", after: []string{"NET_RAW"},
			want: status{none, both, both, both, none, "1"}, program: status{none, both, both, both, none, "1"},
		},
		{
			name: "another user, without SETPCAP", keep: "NET_ADMIN",
			attr:   unprivileged(unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE),
			before: []string{"NET_RAW"}, after: []string{"NET_BIND_SERVICE", "NET_RAW"},
			want: status{admin, admin, admin, own.Bnd, admin, "1"}, program: status{admin, admin, admin, own.Bnd, admin, "1"},
		},
		{
			name: "another user, with SETPCAP", keep: "NET_BIND_SERVICE",
			attr:   unprivileged(unix.CAP_NET_BIND_SERVICE, unix.CAP_SETPCAP),
			before: []string{"NET_ADMIN", "NET_RAW"}, after: []string{"NET_ADMIN", "NET_RAW"},
			want: status{bind, bind, bind, bind, bind, "1"}, program: status{bind, bind, bind, bind, bind, "1"},
		},
		{
			name: "another user, a capability that it never had", keep: "NET_RAW", attr: unprivileged(),
			before: []string{"NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW"}, after: []string{"NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW"},
			want: status{none, none, none, own.Bnd, none, "1"}, program: status{none, none, none, own.Bnd, none, "1"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := runChild(t, tt.keep, tt.attr)
			if got.Count < 5 {
				t.Errorf("%d threads, want at least the 5 locked ones", got.Count)
			}
			got.Count = 0
			want := report{Before: tt.before, Threads: []status{tt.want}, Missing: tt.after, Program: tt.program}
			assert.Same(t, "process", want, got)
		})
	}
}

// needed reports whether an effective set has all capabilities that the cases start with.
func needed(effective string) bool {
	bits, err := strconv.ParseUint(effective, 16, 64)
	for _, v := range []int{unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE, unix.CAP_NET_RAW, unix.CAP_SETPCAP, unix.CAP_SETUID, unix.CAP_SETGID} {
		if bits&(1<<v) == 0 {
			return false
		}
	}
	return err == nil
}

// runChild runs child in a separate process.
func runChild(t *testing.T, keep string, attr *syscall.SysProcAttr) (r report) {
	t.Helper()
	program, err := os.Open("/proc/self/exe") // another user may have no access to the directory of the file
	assert.NoError(t, err)
	defer func() { _ = program.Close() }()
	cmd := exec.CommandContext(t.Context(), "/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{program}
	cmd.Env = append(os.Environ(), keepKey+"="+keep)
	cmd.Dir, cmd.SysProcAttr = "/", attr
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	assert.NoError(t, err)
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	return r
}

// TestMissingOf reads the capabilities of another process, and returns an error if there is none.
func TestMissingOf(t *testing.T) {
	t.Parallel()
	other := exec.CommandContext(t.Context(), "sleep", "60")
	assert.NoError(t, other.Start())
	want := capabilities.Missing(capabilities.NetAdmin, cap.MAC_ADMIN)
	if got, err := capabilities.MissingOf(other.Process.Pid, capabilities.NetAdmin, cap.MAC_ADMIN); err != nil || !slices.Equal(got, want) {
		t.Errorf("a child lacks %v, %v; want %v as this process", got, err, want)
	}
	_ = other.Process.Kill()
	_ = other.Wait()
	if got, err := capabilities.MissingOf(other.Process.Pid, capabilities.NetAdmin); err == nil {
		t.Errorf("a process that has ended lacks %v, without an error", got)
	}
}
