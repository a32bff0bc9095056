// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// mount gives the inner process a view of the machine's files of its own: the processes of its namespace in /proc, a
// file system at dir that is gone with it, and the pods' /etc/resolv.conf.
func mount(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("parting from the machine's mounts: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	if err := unix.Mount("play", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mounting %s: %w", dir, err)
	}
	conf := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(conf, resolvConf(), 0o644); err != nil {
		return fmt.Errorf("writing the pods' resolv.conf: %w", err)
	}
	if err := unix.Mount(conf, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("giving the pods a resolv.conf: %w", err)
	}
	return nil
}

// unmount takes dir's file system away, also if it is in use: its users are about to be killed.
func unmount(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmounting %s: %w", dir, err)
	}
	return nil
}
