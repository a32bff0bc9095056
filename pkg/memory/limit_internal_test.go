// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/nodecache/node-cache/internal/assert"
)

func TestLowerLimit(t *testing.T) {
	t.Parallel()
	const (
		pod       = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod5f0c.slice"
		container = pod + "/cri-containerd-0a1b.scope"
		whole     = "31 23 0:26 / MOUNT rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
	)
	hidden := errors.New("hidden")
	tests := []struct {
		name   string
		cgroup string
		mounts string            // MOUNT stands for the folder with files
		files  map[string]string // memory.high in MB by cgroup
		hard   uint64            // in MB
		err    error             // in place of hard
		want   uint64            // in MB; 0: hard's error
	}{
		{name: "a container", cgroup: "0::/\n", mounts: whole, files: map[string]string{".": "136"}, hard: 144, want: 136},
		{name: "a container without", cgroup: "0::/\n", mounts: whole, files: map[string]string{".": "max"}, hard: 144, want: 144},
		{name: "higher than the limit", cgroup: "0::/\n", mounts: whole, files: map[string]string{".": "200"}, hard: 144, want: 144},
		{name: "nothing else", cgroup: "0::/\n", mounts: whole, files: map[string]string{".": "136"}, err: memlimit.ErrNoLimit, want: 136},
		{name: "neither", cgroup: "0::/\n", mounts: whole, files: map[string]string{".": "max"}, err: memlimit.ErrNoLimit},
		{name: "the limit is not known", cgroup: "0::/\n", mounts: whole, files: map[string]string{".": "136"}, err: hidden},
		{
			name: "of the topmost group, seen from the machine", cgroup: "0::/" + container + "\n", mounts: whole,
			files: map[string]string{".": "10", container: "100", pod: "120"}, hard: 144, want: 10,
		},
		{
			name: "of a group above", cgroup: "0::/" + container + "\n", mounts: whole,
			files: map[string]string{container: "max", pod: "120"}, hard: 144, want: 120,
		},
		{
			name: "of another group", cgroup: "0::/" + container + "\n", mounts: whole,
			files: map[string]string{pod + "/cri-containerd-9999.scope": "100", container + "/below": "90"}, hard: 144, want: 144,
		},
		{
			name: "only the own group is mounted", cgroup: "0::/" + container + "\n", mounts: strings.Replace(whole, " / ", " /"+container+" ", 1),
			files: map[string]string{".": "100"}, hard: 144, want: 100,
		},
		{
			name: "only another group is mounted", cgroup: "0::/" + container + "\n", mounts: strings.Replace(whole, " / ", " /system.slice ", 1),
			files: map[string]string{".": "100"}, hard: 144, want: 144,
		},
		{
			name: "mounted from above the namespace", cgroup: "0::/\n", mounts: strings.Replace(whole, " / ", " /../../../.. ", 1),
			files: map[string]string{".": "100"}, hard: 144, want: 144,
		},
		{
			name: "moved out of the namespace", cgroup: "0::/../other\n", mounts: whole,
			files: map[string]string{".": "100", "other": "90"}, hard: 144, want: 144,
		},
		{
			name:   "memory by version 1, and version 2 beside it",
			cgroup: "5:memory:/a\n1:name=systemd:/a\n0::/a\n",
			mounts: "32 31 0:29 / MOUNT/memory rw - cgroup cgroup rw,memory\n33 31 0:30 / MOUNT/unified rw - cgroup2 cgroup2 rw\n",
			files:  map[string]string{"memory/a": "100"}, hard: 144, want: 144,
		},
		{
			name:   "memory by version 2, others by version 1",
			cgroup: "1:name=systemd:/a\n0::/a\n",
			mounts: "32 31 0:29 / MOUNT/systemd rw - cgroup cgroup rw,name=systemd\n33 31 0:30 / MOUNT/unified rw - cgroup2 cgroup2 rw\n",
			files:  map[string]string{"unified/a": "100"}, hard: 144, want: 100,
		},
		{name: "no cgroups", err: memlimit.ErrNoCgroup},
		{name: "nonsense", cgroup: "0::\n\n0\n", mounts: "\n - cgroup2 \n31 - cgroup2 x\n" + whole, files: map[string]string{".": "1"}, hard: 144, want: 144},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			self, mount := t.TempDir(), t.TempDir()
			write(t, filepath.Join(self, "cgroup"), tt.cgroup)
			write(t, filepath.Join(self, "mountinfo"), strings.ReplaceAll(tt.mounts, "MOUNT", mount))
			for group, high := range tt.files {
				if high != "max" {
					high += "000000"
				}
				write(t, filepath.Join(mount, group, "memory.high"), high+"\n")
			}
			got, err := lowerLimit(self, func() (uint64, error) { return tt.hard * 1e6, tt.err })
			if tt.want == 0 {
				if !errors.Is(err, tt.err) {
					t.Errorf("%d, %v, want %v", got, err, tt.err)
				}
			} else if err != nil || got != tt.want*1e6 {
				t.Errorf("%d, %v, want %d", got, err, tt.want*1_000_000)
			}
		})
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	assert.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	assert.NoError(t, os.WriteFile(file, []byte(text), 0o644))
}
