// SPDX-License-Identifier: Apache-2.0

//go:build unix

package filewatch

import (
	"io/fs"
	"os"
	"syscall"
)

// CheckOwner returns [ErrUntrusted] unless only this process's user and root can write the file, or replace files in the
// folder. A sticky folder such as /tmp passes: others can only add files there.
func CheckOwner(info fs.FileInfo) error {
	own, ok := info.Sys().(*syscall.Stat_t)
	isSticky := info.Mode()&(fs.ModeDir|fs.ModeSticky) == fs.ModeDir|fs.ModeSticky
	if !ok || own.Uid != 0 && int64(own.Uid) != int64(os.Geteuid()) || info.Mode().Perm()&0o022 != 0 && !isSticky {
		return ErrUntrusted
	}
	return nil
}
