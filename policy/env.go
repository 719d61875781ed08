package policy

import "strings"

const maxEnvName = 256 // bytes; longer names are an attack on whoever prints them

// parseEnvName reads a variable name, or NAME* which stands for every name
// that begins so.
func parseEnvName(v value) (Text, *problem) {
	name, pattern := strings.CutSuffix(v.text, "*")
	if pattern && name == "" {
		return Text{}, wrong(`name the variables, or use a prefix such as "LC_*"`, `"*" would pass the whole environment`)
	}
	if strings.Contains(name, "=") {
		return Text{}, wrong("set a value under env.set", "%s has a value", quote(v.text))
	}
	return Text{Value: v.text, Source: v.src}, checkEnvName(name)
}

// checkEnvName accepts the portable names only ([A-Za-z_][A-Za-z0-9_]*,
// POSIX.1-2017 8.1): shells and loaders disagree on all others.
func checkEnvName(name string) *problem {
	ok := name != "" && len(name) <= maxEnvName
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		ok = c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' || i > 0 && c >= '0' && c <= '9'
	}
	if !ok {
		return wrong("letters, digits and _ only, not starting with a digit", "%s is not the name of a variable", quote(name))
	}
	return nil
}

// parseEnvSet reads NAME and its literal value.
func parseEnvSet(v value) (Env, *problem) {
	if strings.IndexByte(v.text, 0) >= 0 {
		return Env{}, wrong("", "the value of %s contains a NUL byte", quote(v.key))
	}
	return Env{Name: v.key, Value: v.text, Source: v.src}, checkEnvName(v.key)
}

// secretWords are the parts of a variable name, between underscores, that say
// that the value is a credential.
var secretWords = [...]string{
	"TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PASSPHRASE", "PASS",
	"CREDENTIAL", "CREDENTIALS", "CREDS", "APIKEY", "COOKIE", "PAT", "DSN",
}

// secretNames are names that carry a credential, or reach one, without saying so.
var secretNames = [...]string{
	"SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO", "GNUPGHOME", "DBUS_SESSION_BUS_ADDRESS", "XAUTHORITY",
	"KUBECONFIG", "NETRC", "DOCKER_AUTH_CONFIG", "DOCKER_CONFIG", "DATABASE_URL", "REDIS_URL", "MONGODB_URI",
	"PGPASSWORD", "PGPASSFILE", "MYSQL_PWD", "SSHPASS", "KEY",
}

// SecretName reports whether the name of a variable looks as if its value were
// a credential or the way to one: AWS_*, *_TOKEN, *_KEY, *_SECRET,
// SSH_AUTH_SOCK and the like. Such variables pass only with "credential-env"
// under unsafe.
func SecretName(name string) bool {
	upper := strings.ToUpper(name)
	if strings.HasPrefix(upper, "AWS_") || strings.HasPrefix(upper, "VAULT_") || strings.HasSuffix(upper, "_KEY") {
		return true
	}
	for _, s := range secretNames {
		if upper == s {
			return true
		}
	}
	for _, part := range strings.Split(upper, "_") {
		for _, w := range secretWords {
			if part == w {
				return true
			}
		}
	}
	return false
}

// PassesEnv reports whether the caller's variable name reaches the command. A
// pattern does not pass a SecretName unless "credential-env" is under unsafe.
func (p *Policy) PassesEnv(name string) bool {
	for _, allowed := range p.EnvAllow {
		if envCovers(allowed.Value, name) {
			return !SecretName(name) || hasText(p.Unsafe, unsafeCredentialEnv)
		}
	}
	return false
}

// envCovers reports whether pattern (NAME or PREFIX*) includes every variable
// that name (again NAME or PREFIX*) stands for.
func envCovers(pattern, name string) bool {
	prefix, open := strings.CutSuffix(pattern, "*")
	if !open {
		return pattern == name
	}
	return strings.HasPrefix(name, prefix)
}

// hasText reports whether list has the word.
func hasText(list []Text, word string) bool {
	for _, t := range list {
		if t.Value == word {
			return true
		}
	}
	return false
}
