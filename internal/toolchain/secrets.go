package toolchain

import (
	"path"
	"slices"
	"strings"
)

// credentialFiles are names of files in which tools keep what they log in with.
// Installs have some of them: npm's, pip's and conda's settings of the whole
// install, for example, hold the tokens of private registries.
var credentialFiles = []string{
	".npmrc", "npmrc", ".yarnrc", ".yarnrc.yml", ".pypirc", "pip.conf", ".pip.conf", "pip.ini", ".condarc", "condarc", "uv.toml", "poetry.toml",
	"credentials", "credentials.toml", "credentials.json", "credentials.tfrc.json", "auth.json", "auth.toml", "hosts.yml", "token", "tokens",
	".netrc", "_netrc", ".git-credentials", ".gitconfig", "gitconfig", ".dockercfg", ".env", ".envrc", ".pgpass", ".my.cnf", ".s3cfg", ".boto",
	"application_default_credentials.json", ".vault-token", ".terraformrc", "kubeconfig", "settings.xml", "settings-security.xml",
	"gradle.properties", "init.gradle", "nuget.config", "id_rsa", "id_ed25519", "id_ecdsa", "id_dsa",
}

// deeper are directories of an install in which such files lie further down.
var deeper = []string{"etc", "conf", "config", "lib/node_modules/npm", "etc/conda", "libexec/lib/node_modules/npm"}

// secrets lists the credential files of an install, relative to it. They are
// looked for at its top and in each directory there, and where tools are known
// to keep them.
func secrets(dir string) []string {
	var out []string
	take := func(rel string) (dirs []string) {
		for _, e := range readDir(path.Join(dir, rel)) {
			switch at := path.Join(rel, e.Name()); {
			case e.IsDir():
				dirs = append(dirs, at)
			case slices.Contains(credentialFiles, strings.ToLower(e.Name())) && !slices.Contains(out, at):
				out = append(out, at)
			}
		}
		return dirs
	}
	places := append(take("."), deeper...)
	for _, d := range slices.Compact(slices.Sorted(slices.Values(places))) {
		take(d)
	}
	return out
}
