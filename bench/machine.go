// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// A machine is where a run happened. A fact that the system does not tell is "unknown".
type machine struct {
	CPU       string `json:"cpu"`
	Cores     int    `json:"cores"`
	Virtual   bool   `json:"virtual"`
	Kernel    string `json:"kernel"`
	System    string `json:"system"`
	LoadStart string `json:"load_average_at_start"` // over one minute
	Go        string `json:"go"`                    // that built this program and CoreDNS
	Upstream  string `json:"upstream"`
	Generator string `json:"generator"`
}

func describeMachine() machine {
	info, _ := os.ReadFile("/proc/cpuinfo")
	system, _ := os.ReadFile("/etc/os-release")
	average, _ := os.ReadFile("/proc/loadavg")
	m := machine{
		CPU:       field(string(info), "model name", ":"),
		Cores:     strings.Count(string(info), "processor\t"),
		Virtual:   strings.Contains(string(info), " hypervisor"),
		Kernel:    "unknown",
		System:    strings.Trim(field(string(system), "PRETTY_NAME", "="), `"`),
		LoadStart: firstWord(string(average)),
		Go:        runtime.Version(),
		Generator: "dnsperf",
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = fmt.Sprintf("%s %s", unix.ByteSliceToString(name.Release[:]), unix.ByteSliceToString(name.Machine[:]))
	}
	return m
}

// field finds the first line "key<separator>value" and returns its value.
func field(text, key, separator string) string {
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, separator)
		if ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func firstWord(text string) string {
	words := strings.Fields(text)
	if len(words) == 0 {
		return "unknown"
	}
	return words[0]
}
