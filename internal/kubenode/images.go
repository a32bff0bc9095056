// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"context"
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

// Registry is the address of the cluster's registry.
const Registry = controlAddr + ":5000"

const registryText = `version: 0.1
storage: {inmemory: {}}
http: {addr: "` + Registry + `"}
`

// startRegistry starts the registry, which is empty, and has the nodes use it as a mirror, if that is wanted.
func (c *Cluster) startRegistry(ctx context.Context) error {
	if !c.options.Registry {
		return nil
	}
	const config = stateFolder + "/registry.yaml"
	if err := c.Control.Write(config, registryText); err != nil {
		return err
	}
	if err := c.Control.Start("registry", "docker-registry", "serve", config); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		if err := n.Write(mirrors+"/ghcr.io/hosts.toml", "server = \"http://"+Registry+"\"\n"); err != nil {
			return err
		}
	}
	return c.waitUntil(ctx, "the registry serves", func(ctx context.Context) error {
		conn, err := c.Control.Dial(ctx, "tcp", Registry)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}
