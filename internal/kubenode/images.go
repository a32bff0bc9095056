// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"fmt"
	"path/filepath"
)

// The images of this package.
const (
	// BusyboxImage has Debian's static busybox, as sh, nslookup, wget and so on, and /bin/pod, which asks continuously.
	BusyboxImage = "docker.io/library/busybox:1.37"
	pauseImage   = "registry.k8s.io/pause:3.10"
	corednsImage = "registry.k8s.io/coredns/coredns:v1"
)

// writeImages makes the images that every node gets, and returns their archives and the caller's.
func (c *Cluster) writeImages() ([]string, error) {
	busybox := map[string]string{"bin/busybox": "/bin/busybox", "bin/pod": c.programs.pod}
	for _, applet := range []string{"sh", "sleep", "nslookup", "wget", "cat", "ip", "nc", "true", "echo"} {
		busybox["bin/"+applet] = "-> busybox"
	}
	images := []Image{
		{Name: pauseImage, Files: map[string]string{"pod": c.programs.pod}, Entrypoint: []string{"/pod", "pause"}},
		{Name: BusyboxImage, Files: busybox},
		{Name: corednsImage, Files: map[string]string{"coredns": c.programs.coredns}, Entrypoint: []string{"/coredns"}},
	}
	var archives []string
	for i, image := range images {
		path := filepath.Join(c.dir, fmt.Sprintf("image%d.tar", i))
		if err := image.Archive(path); err != nil {
			return nil, err
		}
		archives = append(archives, path)
	}
	return append(archives, c.options.Images...), nil
}
