// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// limit is for whatever a play does: far more than it takes.
const limit = time.Minute

// command is a play whose files would be in a folder of the test.
func command(t *testing.T) (cmd *exec.Cmd, tmp string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	tmp = t.TempDir()
	cmd = exec.Command(filepath.Join(binaries, "play"), "-node-cache", filepath.Join(binaries, "node-cache"), "-manifests", "../../examples/cluster")
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	return cmd, tmp
}

// listNamespaces has the shell say which network namespaces there are.
const listNamespaces = "for h in pod1 pod2 node upstream; do $h readlink /proc/self/ns/net; done; echo cou''nted\n" // a terminal's echo does not look like it

// namespaces reads the output of listNamespaces.
func namespaces(t *testing.T, text string) []string {
	t.Helper()
	found := regexp.MustCompile(`net:\[\d+\]`).FindAllString(text, -1)
	if len(found) != 4 {
		t.Fatalf("the hosts are not four namespaces:\n%s", text)
	}
	return found
}

// expectCleanedUp waits until no process uses the namespaces, which is when they end, and checks that the folder is empty.
func expectCleanedUp(t *testing.T, spaces []string, tmp string) {
	t.Helper()
	var left []string
	proctest.Eventually(t, limit, "the namespaces are gone", func() bool {
		left = namespaceUsers(spaces)
		return len(left) == 0
	})
	proctest.Eventually(t, limit, "the folder is empty", func() bool {
		entries, err := os.ReadDir(tmp)
		return err == nil && len(entries) == 0
	})
}

// namespaceUsers lists the processes that are in one of the network namespaces, or hold it open.
func namespaceUsers(spaces []string) []string {
	wanted := map[string]bool{}
	for _, s := range spaces {
		wanted[s] = true
	}
	var found []string
	for _, pattern := range []string{"/proc/[0-9]*/ns/net", "/proc/[0-9]*/fd/*"} {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			if target, err := os.Readlink(path); err == nil && wanted[target] {
				found = append(found, path)
			}
		}
	}
	return found
}

// TestScript does what the welcome suggests.
func TestScript(t *testing.T) {
	t.Parallel()
	cmd, tmp := command(t)
	if _, err := exec.LookPath("dig"); err != nil {
		t.Skip("no dig: apt-get install bind9-dnsutils")
	}
	cmd.Stdin = strings.NewReader(listNamespaces + `
		until_says() { until who-answers | sort -u -k 3 | grep -q "$1"; do sleep 0.05; done; who-answers | cut -c 24- | sort -u; }
		ask() { dig +short +tries=1 "$@" web.shop.svc.cluster.local || echo no answer; }
		echo "== leased"; ask; ask +tcp; pod2 dig +short -x 10.96.10.1; dig +short www.example.com TXT; who-answers | cut -c 24- | sort -u
		echo "== killed"; kill -9 $(cat $PLAY/agent.pid); until_says "central resolver"; ask; ask +tcp
		echo "== again"; agent start >/dev/null; ask; ask +tcp; who-answers | cut -c 24- | sort -u
		echo "== stopped"; agent stop; until_says "central resolver"; ask; ask +tcp
		echo "== at last"; agent start | tail -n 1 | cut -c 1-20
		exit 7
	`)
	p := proctest.Start(t, "play", cmd)
	err := p.Wait(t, limit)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Fatalf("it ended with %v, want the shell's exit status 7", err)
	}
	_, got, _ := strings.Cut(p.Stdout.String(), "counted\n")
	want := `== leased
10.96.10.1
10.96.10.1
web.shop.svc.cluster.local.
"from the external DNS"
the agent of this node
== killed
the central resolver
10.96.10.1
10.96.10.1
== again
10.96.10.1
10.96.10.1
the agent of this node
== stopped
the agent has handed over and ended: who-answers
the central resolver
10.96.10.1
10.96.10.1
== at last
the agent runs again
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the shell's output (-want +got):\n%s\nall of it:\n%s", diff, &p.Stdout)
	}
	expectCleanedUp(t, namespaces(t, p.Stdout.String()), tmp)
}

// TestKilled ends a play from outside, while a program runs in the background of its shell.
func TestKilled(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		signal syscall.Signal
		inner  bool
	}{
		"killed":             {signal: unix.SIGKILL},
		"ended":              {signal: unix.SIGTERM},
		"interrupted":        {signal: unix.SIGINT},
		"hung up":            {signal: unix.SIGHUP},
		"killed from inside": {signal: unix.SIGKILL, inner: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, tmp := command(t)
			stdin, script := pipe(t)
			cmd.Stdin = stdin
			p := proctest.Start(t, "play", cmd)
			if _, err := io.WriteString(script, "setsid sleep 1000 & "+listNamespaces); err != nil {
				t.Fatal(err)
			}
			proctest.Eventually(t, limit, "the shell counts", func() bool { return strings.Contains(p.Stdout.String(), "counted\n") || p.Ended() })
			spaces := namespaces(t, p.Stdout.String())
			if len(namespaceUsers(spaces)) < 4 {
				t.Error("no process is in the namespaces: this test could not detect them left")
			}
			pid := p.PID()
			if tt.inner {
				pid = childOf(t, pid)
			}
			assert.NoError(t, syscall.Kill(pid, tt.signal))
			if err := p.Wait(t, limit); err == nil {
				t.Error("it ended well, want an error")
			}
			expectCleanedUp(t, spaces, tmp)
		})
	}
}

// pipe is a standard input that stays open until the test ends.
func pipe(t *testing.T) (read, write *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	assert.NoError(t, err)
	t.Cleanup(func() { _, _ = read.Close(), write.Close() })
	return read, write
}

// childOf finds the only child of a process.
func childOf(t *testing.T, pid int) int {
	t.Helper()
	threads, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children") // any of them may have started it
	assert.NoError(t, err)
	var children strings.Builder
	for _, thread := range threads {
		text, _ := os.ReadFile(thread) // none of one that has ended
		children.Write(text)
	}
	child, err := strconv.Atoi(strings.TrimSpace(children.String()))
	assert.NoError(t, err)
	return child
}

// TestTerminal has a person at a terminal: the prompt, an interrupt that ends a program only, and a hang-up.
func TestTerminal(t *testing.T) {
	t.Parallel()
	cmd, tmp := command(t)
	person, program := terminal(t)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	assert.NoError(t, cmd.Start())
	_ = program.Close()
	screen := &proctest.Output{}
	go func() { _, _ = io.Copy(screen, person) }() // ends with the terminal
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the screen:\n%q", screen)
		}
	})
	typed := func(text, want string) string {
		t.Helper()
		before := len(screen.String())
		if _, err := io.WriteString(person, text); err != nil {
			t.Fatal(err)
		}
		proctest.Eventually(t, limit, "the screen shows "+want, func() bool { return strings.Contains(screen.String()[before:], want) })
		return screen.String()[before:]
	}
	typed("", "pod1$ ")
	spaces := namespaces(t, typed(listNamespaces, "counted\r\n"))
	// What says that it sleeps is the program that the interrupt ends. A shell that is interrupted while it starts one may
	// take a line more before it waits for it.
	typed(`sh -c "echo sle''eps; exec sleep 1000"; echo sl''ept`+"\n", "sleeps\r\n")
	typed("\x03", "pod1$ ")
	typed("echo al''ive\n", "alive\r\n")
	if strings.Contains(screen.String(), "slept") {
		t.Error("the interrupt did not end what the shell was doing")
	}
	typed("pod2\n", "pod2$ ")
	if err := person.Close(); err != nil { // a hang-up
		t.Fatal(err)
	}
	_ = cmd.Wait()
	expectCleanedUp(t, spaces, tmp)
}

// TestNotRoot checks that the error names the cause and the remedy.
func TestNotRoot(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(filepath.Join(binaries, "play"))
	cmd.Dir = "/"
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("it ended with %v, want exit status 1", err)
	}
	want := "play: it makes network namespaces, which only root may\nhint: sudo make play; `make run` needs no privileges\n"
	assert.Same(t, "got", want, string(out))
}
