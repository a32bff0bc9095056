// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// Tick is the unit of CPU time in /proc: USER_HZ is 100 on every architecture that Go has a Linux port for.
const Tick = 10 * time.Millisecond

// Usage is what a process and its children have used so far.
type Usage struct {
	CPU       time.Duration // user and system time, also of children that have ended
	RSS, Peak int64         // resident bytes: now, and the sum of each process's peak
	DiskRead  int64         // bytes read from disks, with what the kernel read ahead; 0 where this user may not read it
}

// UsageOf reads the usage of a process and its children.
func UsageOf(pid int) (Usage, error) {
	var sum Usage
	for i, one := range Tree(pid) {
		u, err := usageOf(one)
		if err != nil && (i == 0 || !gone(err)) {
			return Usage{}, fmt.Errorf("reading what process %d uses: %w", one, err)
		}
		sum = Usage{CPU: sum.CPU + u.CPU, RSS: sum.RSS + u.RSS, Peak: sum.Peak + u.Peak, DiskRead: sum.DiskRead + u.DiskRead}
	}
	return sum, nil
}

func usageOf(pid int) (Usage, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return Usage{}, err
	}
	stat, err1 := p.Stat()
	status, err2 := p.NewStatus()
	if err := errors.Join(err1, err2); err != nil {
		return Usage{}, err
	}
	u := Usage{
		CPU: time.Duration(int(stat.UTime+stat.STime)+stat.CUTime+stat.CSTime) * Tick,
		RSS: int64(status.VmRSS), Peak: int64(status.VmHWM),
	}
	if io, err := p.IO(); err == nil {
		u.DiskRead = int64(io.ReadBytes)
	}
	return u, nil
}

// gone reports whether an error of /proc means that the process has ended.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

// Tree returns a process and its descendants, parents first.
func Tree(pid int) []int {
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		folder := fmt.Sprintf("/proc/%d/task", all[i])
		threads, _ := os.ReadDir(folder) // none: the process has ended
		for _, thread := range threads {
			text, _ := os.ReadFile(folder + "/" + thread.Name() + "/children")
			for child := range strings.FieldsSeq(string(text)) {
				if id, err := strconv.Atoi(child); err == nil {
					all = append(all, id)
				}
			}
		}
	}
	return all
}

// MachineTime returns the CPU time of all CPUs since the start of the machine: how much was used, by a hypervisor too, and
// how much has passed.
func MachineTime() (busy, all time.Duration, err error) {
	system, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, 0, fmt.Errorf("reading CPU time: %w", err)
	}
	stat, err := system.Stat()
	if err != nil {
		return 0, 0, fmt.Errorf("reading CPU time: %w", err)
	}
	c := stat.CPUTotal // guests are part of user and nice
	used := c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal
	return seconds(used), seconds(used + c.Idle + c.Iowait), nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
