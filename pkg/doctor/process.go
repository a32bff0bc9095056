// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// processes returns the folders of all processes.
func processes(proc string) []string {
	var list []string
	entries, _ := os.ReadDir(proc)
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			list = append(list, filepath.Join(proc, e.Name()))
		}
	}
	return list
}

// readKubelet reads the nameservers for pods from the kubelet's command line and
// configuration file.
func readKubelet(proc string) Kubelet {
	for _, p := range processes(proc) {
		if name, _ := os.ReadFile(filepath.Join(p, "comm")); strings.TrimSpace(string(name)) != "kubelet" {
			continue
		}
		line, err := os.ReadFile(filepath.Join(p, "cmdline"))
		if err != nil {
			return Kubelet{Err: fmt.Errorf("reading the kubelet's command line: %w", err)}
		}
		return kubeletIn(p, strings.Split(strings.TrimRight(string(line), "\x00"), "\x00"))
	}
	return Kubelet{}
}

// kubeletIn reads the settings of the kubelet with the folder p in /proc that was started with args. A flag takes
// precedence over the file.
func kubeletIn(p string, args []string) Kubelet {
	if list := flag(args, "cluster-dns"); list != "" {
		return Kubelet{DNS: strings.Split(list, ","), From: "its flag --cluster-dns"}
	}
	file := flag(args, "config")
	if file == "" {
		return Kubelet{From: "its flags"}
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join("cwd", file)
	} else {
		file = filepath.Join("root", file)
	}
	text, err := os.ReadFile(filepath.Join(p, file))
	if err != nil {
		return Kubelet{Err: fmt.Errorf("reading the kubelet's configuration file: %w", err)}
	}
	var settings struct {
		ClusterDNS []string `json:"clusterDNS"`
	}
	if err := yaml.Unmarshal(text, &settings); err != nil {
		return Kubelet{Err: fmt.Errorf("reading the kubelet's configuration file: %w", err)}
	}
	return Kubelet{DNS: settings.ClusterDNS, From: "clusterDNS in " + strings.TrimPrefix(strings.TrimPrefix(file, "root"), "cwd/")}
}

// flag returns the last value of a flag in args: --name=value or --name value.
func flag(args []string, name string) string {
	value := ""
	for i, arg := range args {
		arg = strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-")
		if v, ok := strings.CutPrefix(arg, name+"="); ok {
			value = v
		} else if arg == name && i+1 < len(args) {
			value = args[i+1]
		}
	}
	return value
}

// podResolvers counts the nameservers in /etc/resolv.conf of one process in each network
// namespace except this one. A process that has its own namespace but the node's file is
// no pod.
func podResolvers(proc, self string) (map[string]int, error) {
	own, err := os.Readlink(filepath.Join(self, "ns/net"))
	if err != nil {
		return nil, fmt.Errorf("reading the network namespace: %w", err)
	}
	node, err := os.Stat(filepath.Join(proc, "1/root/etc/resolv.conf"))
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("reading the node's resolv.conf: %w", err)
	}
	seen := map[string]bool{own: true, "": true}
	counts := map[string]int{}
	for _, p := range processes(proc) {
		namespace, _ := os.Readlink(filepath.Join(p, "ns/net")) // empty without permission
		if seen[namespace] {
			continue
		}
		file := filepath.Join(p, "root/etc/resolv.conf")
		if info, err := os.Stat(file); err != nil || node != nil && os.SameFile(info, node) {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			continue // a pod's sandbox may have no such file, but its containers do
		}
		for _, server := range nameservers(string(text)) {
			seen[namespace] = true
			counts[server]++
		}
	}
	return counts, nil
}

// nameservers returns the distinct nameservers in a resolv.conf.
func nameservers(text string) []string {
	var list []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) >= 2 && fields[0] == "nameserver" && !slices.Contains(list, fields[1]) {
			list = append(list, fields[1])
		}
	}
	return list
}
