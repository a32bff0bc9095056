// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// ErrUntrusted is the error of a file or a folder whose content may be of another user.
var ErrUntrusted = errors.New("it belongs to another user, or others may write to it")

// Trusted returns nil if only this process's user and root could have written a file, or put a file into a folder in place
// of another. In a folder with the sticky bit, such as /tmp, others can only add files.
func Trusted(info fs.FileInfo) error {
	own, ok := info.Sys().(*syscall.Stat_t)
	isSticky := info.Mode()&(fs.ModeDir|fs.ModeSticky) == fs.ModeDir|fs.ModeSticky
	if !ok || own.Uid != 0 && int64(own.Uid) != int64(os.Geteuid()) || info.Mode().Perm()&0o022 != 0 && !isSticky {
		return ErrUntrusted
	}
	return nil
}
