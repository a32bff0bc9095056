// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/proctest"
)

func TestLaunchPins(t *testing.T) {
	t.Parallel()
	if err := needTwoCPUs(); err != nil {
		t.Skip(err)
	}
	for _, cpu := range []int{serverCPU, otherCPU} {
		p, err := launch(t.Context(), cpu, t.TempDir(), "shell", []string{"sh", "-c", "echo started; sleep 60"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		proctest.Eventually(t, 10*time.Second, "it runs", func() bool { return p.Tail(1) == "started" })
		var want, got unix.CPUSet
		want.Set(cpu)
		if err := unix.SchedGetaffinity(p.PID(), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("affinity (-want +got):\n%s", diff)
		}
	}
}

func TestEndedHasTheLastLine(t *testing.T) {
	t.Parallel()
	h := &harness{dir: "/tmp/run"}
	p := proctest.Start(t, "shell", exec.CommandContext(t.Context(), "sh", "-c", "echo one; echo cannot read /tmp/run/conf; echo"))
	<-p.Done()
	if err := h.ended(p); err == nil || err.Error() != "ended: cannot read conf" {
		t.Errorf("ended = %v", err)
	}
}

func TestOthersSince(t *testing.T) {
	t.Parallel()
	before := clocks{server: time.Second, upstream: time.Second, busy: 5 * time.Second, all: 100 * time.Second}
	tests := []struct {
		name  string
		after clocks
		want  float64
	}{
		{
			name:  "a fifth for others",
			after: clocks{server: 4 * time.Second, upstream: 2 * time.Second, busy: 13 * time.Second, all: 110 * time.Second},
			want:  0.2, // 8 s busy: 3 s server, 1 s upstream, 2 s generator, 2 s others, of 10 s
		},
		{
			name:  "booked by two means, below nothing",
			after: clocks{server: 6 * time.Second, upstream: 2 * time.Second, busy: 12 * time.Second, all: 110 * time.Second},
			want:  0,
		},
		{name: "no time between", after: before, want: 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := tt.after.othersSince(before, 2*time.Second); got != tt.want {
				t.Errorf("othersSince = %v, want %v", got, tt.want)
			}
		})
	}
}
